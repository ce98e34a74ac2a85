import type { Pool } from 'pg'
import type { Isolation } from '../src/postgres/transaction-types.js'
import { exploreWith } from '../src/testing/explore/explore.js'
import type { DependenceRule } from '../src/testing/explore/reduce/dependence.js'
import type { ExploreReport } from '../src/testing/explore/report/report.js'

/** A statement by itself, or several in a transaction. */
export type Piece = string | readonly string[]

/** Statements that several actors run at the same time. */
export interface Program {
  readonly setup?: string
  readonly actors: readonly (readonly Piece[])[]
  readonly isolation?: Isolation
  /** The statement that begins transactions. Default `begin`. */
  readonly begin?: string
}

export interface Explored {
  readonly report: ExploreReport
  /** Every end that was reached: the tables, and what each actor has read. Redundant schedules do not count. */
  readonly ends: ReadonlySet<string>
  /** Some statement had to wait for a lock. */
  readonly hasWaits: boolean
}

interface ExploreProgramOptions {
  readonly url: string
  /** Tables that are read at the end. */
  readonly tables: readonly string[]
  readonly everyOrder: boolean
  readonly rules?: readonly DependenceRule[]
}

export async function exploreProgram(program: Program, options: ExploreProgramOptions): Promise<Explored> {
  const { setup, actors, isolation, begin = 'begin' } = program
  const { url, tables, everyOrder, rules } = options
  const contents = `select ${tables.map((table) => `(select json_agg(t order by t::text) from ${table} t)`).join()}`
  const ends = new Set<string>()
  let hasWaits = false
  let isRepeat = false
  const report = await exploreWith(
    {
      url,
      everyOrder,
      isolation: isolation ?? 'read committed',
      ...(setup === undefined ? {} : { setup: (db) => db.query(setup) }),
      actors: Object.fromEntries(
        actors.map((pieces, i) => ['abc'[i], (db: Pool) => runPieces(db, pieces, begin)]),
      ),
      invariant: async (db, outcomes) => {
        if (isRepeat) return
        const { rows } = await db.query({ text: contents, rowMode: 'array' })
        ends.add(JSON.stringify([rows, Object.values(outcomes)]))
      },
      bound: { schedules: 20_000, random: 0 },
      throws: false,
    },
    {
      ...(rules ? { rules } : {}),
      onTrace: ({ steps }, repeats) => {
        isRepeat = repeats
        hasWaits ||= steps.some(({ effect }) => effect.kind === 'waits')
      },
    },
  )
  return { report, ends, hasWaits }
}

/** Runs the statements of an actor and returns their results. An error ends its piece, not the actor. */
export async function runPieces(db: Pool, pieces: readonly Piece[], begin = 'begin'): Promise<unknown[]> {
  const seen: unknown[] = []
  for (const piece of pieces) {
    const client = await db.connect()
    try {
      const run = async (sql: string): Promise<void> => {
        const result = await client.query({ text: sql, rowMode: 'array' })
        for (const { command, rowCount, rows } of [result].flat()) seen.push([command, rowCount, rows])
      }
      if (typeof piece === 'string') await run(piece)
      else for (const sql of [begin, ...piece, 'commit']) await run(sql)
    } catch (error) {
      seen.push((error as { code?: string }).code)
      await client.query('rollback')
    } finally {
      client.release()
    }
  }
  return seen
}
