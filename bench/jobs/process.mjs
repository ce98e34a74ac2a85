// A process that opens one contestant and does what it is told; this file is also what it runs. Every contestant runs in processes of its own, so
// that none has to live with what another one left behind.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { findNode } from './node-24.mjs'

export class JobProcess {
  #child
  #asked = 0
  #answers = new Map()

  /** @returns undefined if the contestant is not there to be measured */
  static async open(name, options) {
    const opened = new JobProcess()
    opened.#child = fork(import.meta.filename, [], {
      execPath: findNode(),
      env: { ...process.env, BENCH_JOBS_PROCESS: 'yes' },
    })
    opened.#child.on('message', ({ id, value, error }) => {
      const { resolve, reject } = opened.#answers.get(id)
      opened.#answers.delete(id)
      if (error) reject(new Error(`${name}: ${error}`))
      else resolve(value)
    })
    opened.#child.on('exit', (code) => {
      for (const { reject } of opened.#answers.values()) reject(new Error(`${name}: ended with ${code}`))
    })
    const isThere = await opened.call('open', { name, options: { connections: 3, hints: false, ...options } })
    if (isThere) return opened
    await opened.close()
    return undefined
  }

  /** Runs a task of `tasks.mjs` in the child process. */
  call(task, asked = {}) {
    const id = this.#asked++
    return new Promise((resolve, reject) => {
      this.#answers.set(id, { resolve, reject })
      this.#child.send({ id, task, asked })
    })
  }

  async close() {
    this.#child.disconnect()
    if (this.#child.exitCode === null) await once(this.#child, 'exit')
  }
}

if (process.env.BENCH_JOBS_PROCESS && process.send) {
  const { tasks } = await import('./tasks.mjs')
  process.on('message', async ({ id, task, asked }) => {
    try {
      process.send({ id, value: (await tasks[task](asked)) ?? null })
    } catch (error) {
      process.send({ id, error: error?.stack ?? String(error) })
    }
  })
  // Some of the contestants keep a timer or a connection for a while after they were closed.
  process.on('disconnect', async () => {
    await Promise.race([tasks.close().catch(() => {}), new Promise((resolve) => setTimeout(resolve, 3_000))])
    process.exit()
  })
}
