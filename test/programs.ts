import type { Pool } from 'pg'
import { exploreWith } from '../src/testing/explore/explore.js'
import type { Isolation } from '../src/testing/explore/options.js'
import type { DependentPair } from '../src/testing/explore/reduce/dependence.js'
import type { ExploreReport } from '../src/testing/explore/report/report.js'

/** A statement by itself, or several in a transaction. */
export type Piece = string | readonly string[]

/** What some actors do at the same time, in SQL alone. */
export interface Program {
  readonly setup?: string
  readonly actors: readonly (readonly Piece[])[]
  readonly isolation?: Isolation
  /** How transactions begin. */
  readonly begin?: string
}

export interface Explored {
  readonly report: ExploreReport
  /** Every end that was reached, but by schedules for which others stand: what is in the tables, and what each actor has seen on its way. */
  readonly ends: ReadonlySet<string>
  /** Some statement had to wait for a lock. */
  readonly hasWaits: boolean
}

interface How {
  readonly url: string
  /** Tables to be looked at in the end. */
  readonly tables: readonly string[]
  readonly everyOrder: boolean
  readonly pairs?: readonly DependentPair[]
}

export async function exploreProgram(program: Program, how: How): Promise<Explored> {
  const { setup, actors, isolation, begin = 'begin' } = program
  const { url, tables, everyOrder, pairs } = how
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
        actors.map((pieces, i) => ['abc'[i], (db: Pool) => play(db, pieces, begin)]),
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
      ...(pairs ? { pairs } : {}),
      onTrace: ({ steps }, repeats) => {
        isRepeat = repeats
        hasWaits ||= steps.some(({ effect }) => effect.kind === 'waits')
      },
    },
  )
  return { report, ends, hasWaits }
}

/** Tells what it has seen; an error ends its piece, not the actor. */
export async function play(db: Pool, pieces: readonly Piece[], begin = 'begin'): Promise<unknown[]> {
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
