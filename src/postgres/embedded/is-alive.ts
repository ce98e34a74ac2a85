import { readFileSync } from 'node:fs'

/** Whether a process of this number runs, ours or another's. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EPERM') return false
  }
  return !isZombie(pid)
}

/** It has ended, but its parent has not asked: in a container whose first process never does, for ever. */
function isZombie(pid: number): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return /^[ZX]/.test(stat.slice(stat.lastIndexOf(')') + 2)) // after the name, which may hold anything
  } catch {
    return false // not Linux, or gone just now
  }
}
