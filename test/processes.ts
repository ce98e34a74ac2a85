import { execFileSync } from 'node:child_process'
import { until } from './until.js'

export interface Process {
  readonly pid: number
  readonly command: string
}

/** Processes that have a folder in their command line: supervisors name theirs, servers their data's. */
export function processesOf(folder: string): Process[] {
  const list = execFileSync('ps', ['-ww', '-eo', 'pid=,stat=,args='], { encoding: 'utf8' })
  return list.split('\n').flatMap((line) => {
    const [, pid, state, command] = line.match(/^\s*(\d+)\s+(\S+)\s+(.*)$/) ?? []
    if (!command?.includes(folder) || state?.startsWith('Z') || Number(pid) === process.pid) return []
    return [{ pid: Number(pid), command }]
  })
}

export const supervisorsOf = (folder: string): number[] => pidsOf(folder, /supervisor-process\.js/)
export const serversOf = (folder: string): number[] => pidsOf(folder, /postgres -D/)

function pidsOf(folder: string, kind: RegExp): number[] {
  return processesOf(folder)
    .filter(({ command }) => kind.test(command))
    .map(({ pid }) => pid)
}

/** Kills what still uses a folder, supervisors first, since they would start their servers again. */
export async function endProcesses(folder: string): Promise<void> {
  await until(() => {
    for (const pid of [...supervisorsOf(folder), ...processesOf(folder).map(({ pid }) => pid)]) {
      try {
        process.kill(pid, 'SIGKILL')
      } catch {
        // gone meanwhile
      }
    }
    return processesOf(folder).length === 0
  }, 'processes to end')
}
