import { spawnSync } from 'node:child_process'
import { lstatSync, readdirSync, rmdirSync, rmSync, unlinkSync } from 'node:fs'
import { join } from 'node:path'

/**
 * Removes a folder with all that is in it, or a file. Root empties a folder of the server's user with the rights of that
 * user, who may swap folders for links meanwhile. What those rights do not suffice for stays.
 */
export function removeTree(path: string): void {
  const found = lstatSync(path, { throwIfNoEntry: false })
  if (process.getuid?.() !== 0) {
    rmSync(path, { recursive: true, force: true })
    return
  }
  if (!found) return
  if (!found.isDirectory()) {
    // Unlike `rmSync`, `unlinkSync` fails for a folder that another user has put here since `lstatSync`.
    unlinkSync(path)
    return
  }
  const { uid, gid } = found
  if (uid === 0) for (const name of readdirSync(path)) removeTree(join(path, name))
  else spawnSync('rm', ['-rf', path], { uid, gid, cwd: '/', stdio: 'ignore' })
  try {
    rmdirSync(path)
  } catch {
    // Something is left, or another process was first.
  }
}
