import { spawnSync } from 'node:child_process'
import { lstatSync, readdirSync, rmdirSync, rmSync, unlinkSync } from 'node:fs'
import { join } from 'node:path'

/**
 * Removes a file or a folder with its content. Another user may replace folders by links during the removal. Root
 * therefore removes that user's files with the user's own rights. Files that those rights do not allow to remove stay.
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
    // Files are left, or another process was first.
  }
}
