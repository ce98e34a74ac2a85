import { readFileSync, statSync } from 'node:fs'

/** Distinguishes a process from a later one with the same pid. Undefined if the process has ended. */
export function processIdentity(pid: number): string | undefined {
  if (!exists(pid)) return undefined
  const [state, ...rest] = readStat(pid) ?? ['?']
  // A zombie. In a container whose first process never reaps, it stays forever.
  if (state === 'Z' || state === 'X') return undefined
  return `${pid} since ${rest[18] ?? 'unknown'}` // when it started, in clock ticks since boot
}

/** True if a process with this pid runs, of any user. */
export function isAlive(pid: number): boolean {
  return processIdentity(pid) !== undefined
}

/** True if the working directory of a process is `folder`, by any path. Undefined if the system does not show that. */
export function worksIn(pid: number, folder: string): boolean | undefined {
  if (process.platform !== 'linux') return undefined
  try {
    const [here, there] = [statSync(`/proc/${pid}/cwd`), statSync(folder)]
    return here.dev === there.dev && here.ino === there.ino // guard: embedded.process-identity
  } catch {
    return false // a process of another user, or the folder is gone
  }
}

/** Identifies a folder by device and inode, independent of its path. Undefined if the folder does not exist. */
export function folderIdentity(folder: string): string | undefined {
  const found = statSync(folder, { throwIfNoEntry: false })
  return found && `${found.dev}:${found.ino}`
}

/** True if the working directory of a process was removed. Undefined if the system does not show that. */
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

/** The fields of `/proc/<pid>/stat` from the state on. The name comes before the state, and may contain anything. */
function readStat(pid: number): string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return text.slice(text.lastIndexOf(')') + 2).split(' ')
  } catch {
    return undefined
  }
}
