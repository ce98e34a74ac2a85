import { readFileSync, statSync } from 'node:fs'

/** Tells a process from a later one with the same number; undefined if it has ended. */
export function processIdentity(pid: number): string | undefined {
  if (!exists(pid)) return undefined
  const [state, ...rest] = readStat(pid) ?? ['?']
  // Ended, but its parent has not asked how: in a container whose first process never does, for ever.
  if (state === 'Z' || state === 'X') return undefined
  return `${pid} since ${rest[18] ?? 'unknown'}` // the moment it started, in ticks since the machine did
}

/** Whether a process of this number runs, ours or another's. */
export function isAlive(pid: number): boolean {
  return processIdentity(pid) !== undefined
}

/** Whether a process works in a folder, by whatever path that is called; undefined where that cannot be seen. */
export function worksIn(pid: number, folder: string): boolean | undefined {
  if (process.platform !== 'linux') return undefined
  try {
    const [here, there] = [statSync(`/proc/${pid}/cwd`), statSync(folder)]
    return here.dev === there.dev && here.ino === there.ino
  } catch {
    return false // one of another user's, or the folder is gone
  }
}

/** Tells a folder, by whatever path it is called; undefined if there is none. */
export function folderIdentity(folder: string): string | undefined {
  const found = statSync(folder, { throwIfNoEntry: false })
  return found && `${found.dev}:${found.ino}`
}

/** Whether the folder that a process works in was removed; undefined where that cannot be seen. */
export function worksInRemoved(pid: number): boolean | undefined {
  try {
    return statSync(`/proc/${pid}/cwd`).nlink === 0
  } catch {
    return undefined
  }
}

function exists(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/** What Linux says of a process, from its state on: its name comes before, and may hold anything. */
function readStat(pid: number): string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return text.slice(text.lastIndexOf(')') + 2).split(' ')
  } catch {
    return undefined
  }
}
