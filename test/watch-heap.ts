import { fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { url } from './database.js'
import { openDatabase } from './open-database.js'

const script = join(import.meta.dirname, 'children/watch-heap.mjs')
const PARTS = 3

/** The work, and how often it is repeated. See `test/children/watch-heap.mjs`. */
export interface RepeatedWork {
  readonly work: string
  readonly count: number
}

/**
 * Does the work in a process of its own, a third at a time. Returns how much the heap has grown from the end of the first third to the end of the
 * last, in MB: by then all code has run, so that only what is kept grows.
 */
export async function heapGrowth({ work, count }: RepeatedWork): Promise<number> {
  const database = await openDatabase()
  try {
    const given = { url, schema: database.schema, work, count, parts: PARTS }
    const child = fork(script, [JSON.stringify(given)], { execArgv: ['--expose-gc'] })
    const heap: number[] = []
    child.on('message', (bytes) => heap.push(Number(bytes)))
    const [code] = await once(child, 'exit')
    const [first, last] = [heap[0], heap[PARTS - 1]]
    if (first === undefined || last === undefined) throw new Error(`"${work}" ended early, with code ${code}`)
    return (last - first) / 2 ** 20
  } finally {
    await database.drop()
  }
}
