import type { Pool } from 'pg'
import { describe, expect, it } from 'vitest'
import { itInDepth } from '../../../test/depth.js'
import { exploredSchema } from '../../../test/explored-schema.js'
import {
  type Answer,
  type Case,
  cases,
  type Level,
  levels,
  rows,
  type Seen,
  type Session,
  table,
} from '../../../test/hermitage.js'
import { explore } from './explore.js'
import type { ExploreOptions } from './options.js'
import type { Effect, TraceStep } from './schedule/trace.js'

const { url } = exploredSchema(table)

describe.each(cases)('$name', (one) => {
  describe.each(levels)('at %s', (level) => checkAt(level, one))
})

it.each(cases.filter(({ allowedAt }) => allowedAt.length === 0))('$name would be noticed', (one) => {
  expect(one.elsewhere).toBeDefined()
  expect(one.isAnomaly({ T1: [], T2: [], T3: [], left: '', ...one.elsewhere })).toBe(true)
})

function checkAt(level: Level, one: Case): void {
  it('goes as documented, step by step', async () => {
    const { options, seen } = actorsOf(level, one)
    const runs: Seen[] = []
    const report = await explore({
      ...options,
      schedule: scheduleOf(level, one),
      // Only a failed schedule has its steps in the report. It is run twice, and must go the same way twice.
      invariant: async (db) => {
        runs.push({ ...structuredClone(seen), left: await readTable(db) })
        return false
      },
    })
    expect(report.notes).toEqual([])
    const steps = report.race?.steps ?? []
    expect(steps.filter(isInCase).map(showStep)).toEqual(
      stepsAt(level, one).map(([session, sql, answer]) => `${session}: ${sql} -> ${answer}`),
    )
    // The trace shows the same results as the clients received.
    const [run] = runs
    expect(runs).toEqual([run, run])
    for (const session of ['T1', 'T2', 'T3'] as const)
      expect(run?.[session]).toEqual(answersTo(session, steps))
    expect(run?.left).toBe(at(level, one.left))
    expect(run && one.isAnomaly(run)).toBe(one.allowedAt.includes(level) && !one.isHarmless)
  })

  const isAllowed = one.allowedAt.includes(level)
  // A search that finds nothing must run all orders, which takes longer.
  const itOrInDepth = isAllowed ? it : itInDepth
  itOrInDepth(isAllowed ? 'is found by the search' : 'occurs in no order', async () => {
    const { options, seen } = actorsOf(level, one)
    const report = await explore({
      ...options,
      invariant: async (db) => !one.isAnomaly({ ...seen, left: await readTable(db) }),
      bound: { preemptions: one.preemptions },
    })
    expect(report.verdict, report.race?.printout ?? report.summary).toBe(isAllowed ? 'race' : 'passed')
    if (isAllowed) expect(report.race?.isSerial).toBe(false)
    else expect(one.preemptions ? report.isComplete : report.isExhaustive, report.summary).toBe(true)
  })
}

const at = (level: Level, answer: Answer): string =>
  typeof answer === 'string' ? answer : (answer[levels.indexOf(level)] ?? '')

/** The steps of a case at a level. Steps after the failure of their transaction are left out. */
const stepsAt = (level: Level, { steps }: Case): [Session, sql: string, answer: string][] =>
  steps.flatMap(([session, sql, answer]) =>
    at(level, answer) === '-' ? [] : [[session, sql, at(level, answer)]],
  )

/** One actor for each session, which runs the session's statements and records the results. */
function actorsOf(level: Level, one: Case) {
  const seen: Record<Session, string[]> = { T1: [], T2: [], T3: [] }
  const sessions = [...new Set(one.steps.map(([session]) => session))]
  const textsOf = (session: Session) => one.steps.filter(([by]) => by === session).map(([, sql]) => sql)
  const options = {
    url,
    isolation: level,
    setup: (db) => {
      for (const answers of Object.values(seen)) answers.length = 0
      return db.query(rows)
    },
    actors: Object.fromEntries(
      sessions.map((session) => [session, (db) => runSession(db, textsOf(session), seen[session])]),
    ),
    mayFail: isSerializationFailure,
    throws: false,
  } satisfies ExploreOptions
  return { options, seen }
}

async function runSession(db: Pool, texts: readonly string[], answers: string[]): Promise<void> {
  const client = await db.connect()
  let isOpen = true
  try {
    await client.query('begin')
    for (const text of texts) {
      if (text === 'commit' || text === 'rollback') isOpen = false
      const { command, rows, rowCount } = await client.query<number[]>({ text, rowMode: 'array' })
      answers.push(showResult(command, rows, rowCount ?? 0))
    }
  } catch (error) {
    if (isSerializationFailure(error)) answers.push(showError(error))
    if (isOpen) await client.query('rollback')
    throw error
  } finally {
    client.release()
  }
}

const isSerializationFailure = (error: unknown): error is Error & { code: string } =>
  error instanceof Error && 'code' in error && error.code === '40001'

async function readTable(db: Pool): Promise<string> {
  const { rows } = await db.query<number[]>({ text: 'select * from item', rowMode: 'array' })
  return showRows(rows)
}

/** The session of each step. At SERIALIZABLE a statement outside a transaction has a COMMIT that is a step of its own. */
function scheduleOf(level: Level, one: Case): Session[] {
  const ended = new Set<Session>()
  return stepsAt(level, one).flatMap(([session, sql]) => {
    if (ended.has(session) && level === 'serializable') return [session, session]
    if (sql === 'commit') ended.add(session)
    return [session]
  })
}

const isInCase = ({ statement }: TraceStep): boolean => statement !== 'commit (implicit)'

function showStep({ unit, statement, effect, resumed }: TraceStep): string {
  const others = resumed.map((other) => `, ${other.unit}: ${showEffect(other.effect)}`)
  return `${unit}: ${statement} -> ${showEffect(effect)}${others.join('')}`
}

function answersTo(session: Session, steps: readonly TraceStep[]): string[] {
  return steps
    .filter(isInCase)
    .flatMap(({ unit, effect, resumed }) => [{ unit, effect }, ...resumed])
    .filter(({ unit, effect }) => unit === session && effect.kind === 'done')
    .map(({ effect }) => showEffect(effect))
}

function showEffect(effect: Effect): string {
  if (effect.kind === 'waits') return `waits for ${effect.for.join(', ')}`
  if (effect.kind !== 'done') return effect.kind
  const { tag, rows, rowCount, error } = effect.result
  if (error) return showError(error)
  const [command = '', ...counts] = tag.split(' ')
  return showResult(command, rows, command === 'SELECT' ? rowCount : Number(counts.at(-1)))
}

function showResult(command: string, rows: Rows, rowCount: number): string {
  if (command === 'SELECT') return showRows(rows)
  if (command === 'COMMIT' || command === 'ROLLBACK') return 'done'
  return rowCount === 1 ? '1 row' : `${rowCount} rows`
}

type Rows = readonly (readonly (string | number | null)[])[]

const showRows = (rows: Rows): string =>
  rows
    .map(([id, n]) => `${id}=${n}`)
    .toSorted()
    .join(' ') || 'none'

const showError = ({ code, message }: { code: string; message: string }): string =>
  `${code} ${message.replace('could not serialize access due to ', '')}`
