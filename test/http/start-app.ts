import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'

export interface RunningApp {
  readonly port: number
  /** Ends it as `kill -9` does. */
  kill(): Promise<void>
  /** Resolves when it has ended by itself. */
  readonly ended: Promise<unknown>
}

/** Starts one of the applications in apps/ as a process of its own, which ends with this one. */
export async function startApp(name: string, env: Record<string, string>): Promise<RunningApp> {
  const child: ChildProcess = fork(join(import.meta.dirname, `apps/${name}.mjs`), {
    env: { ...process.env, ...env },
    execArgv: [],
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  })
  const ended = once(child, 'exit')
  let said = ''
  const port = await new Promise<number>((resolve, reject) => {
    child.stderr?.on('data', (chunk) => {
      said += chunk
    })
    child.stdout?.on('data', (chunk) => {
      said += chunk
      const found = /listening on (\d+)/.exec(said)?.[1]
      if (found) resolve(Number(found))
    })
    ended.then(() => reject(new Error(`${name} has ended: ${said}`)))
  })
  return {
    port,
    ended,
    async kill() {
      if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL')
      await ended
    },
  }
}
