import { InvalidInputError } from '../errors.js'
import { checkDuration } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import { checkZone } from '../postgres/check-zone.js'
import type { Row } from '../postgres/executor.js'
import { checkCharacters, checkKey } from '../postgres/key.js'
import { nameGiven, showGiven } from '../postgres/name-given.js'
import { checkPatch, type RowPatch } from '../postgres/rows/row-args.js'
import { readTableName } from '../postgres/rows/table-name.js'
import type { Transaction } from '../postgres/transaction-types.js'
import type { State } from './transition.js'

const BATCH = 100
const MAX_BATCH = 1_000
const MAX_STATES = 20
const MAX_ATTEMPTS = 3
const EVERY_MS = 60_000

/** The decision about a stuck row. `leave` or undefined: the row stays as it is, and the next run finds it again. */
export type MonitorVerdict = 'requeue' | 'fail' | 'leave' | { readonly set: RowPatch } | undefined

/** Decides about one row, in a transaction that has locked the row. What the function writes through `tx` commits with its verdict. */
export type MonitorAction<R extends object = Row> = (row: R, tx: Transaction) => Promise<MonitorVerdict>

export interface MonitorOptions<R extends object = Row> {
  readonly table: string
  /** The column that holds the state. Default `status`. */
  readonly statusColumn?: string | undefined
  /** The state, or states, in which a row is being worked on. */
  readonly stuck: State | readonly State[]
  /** The column with the last sign of life of a row: `timestamptz`, or `timestamp` with `timeZone`. A row without a time is never old. */
  readonly timeColumn: string
  /** The time zone of a `timestamp` column, such as `UTC`. */
  readonly timeZone?: string | undefined
  /** How old the time in `timeColumn` must be for a row to count as stuck, by the database's clock. */
  readonly olderThanMs: number
  /** A `timestamptz` column that holds the end of a row's lease. A row whose lease has not ended is alive and is never touched, however old it is. */
  readonly leaseColumn?: string | undefined
  /** `requeue`: the row is to be worked on again. `fail`: the row is given up. Or a function that decides about each row. */
  readonly action: 'requeue' | 'fail' | MonitorAction<R>
  /** The state of a row that is requeued. */
  readonly requeueTo?: State | undefined
  /** The state of a row that is given up. */
  readonly failTo?: State | undefined
  /** A column of whole numbers that counts the attempts of a row. A row that has had `maxAttempts` fails instead of being requeued. */
  readonly attemptsColumn?: string | undefined
  /** The most attempts of a row in total. Default 3. */
  readonly maxAttempts?: number | undefined
  /** Whether the monitor adds the lost attempt to `attemptsColumn`. Set it to false if the worker already counts when it claims a row. Default true. */
  readonly countsAttempts?: boolean | undefined
  /** The column that gets the reason when a row is given up. */
  readonly errorColumn?: string | undefined
  /** The text for `errorColumn`. Default: `Processing timeout - worker may have crashed`, or `Execution …` if the state is `EXECUTING`. */
  readonly reason?: string | undefined
  /** A `bigint` column that grows with each action. A worker that comes back late and compares its fence then writes nothing. */
  readonly fenceColumn?: string | undefined
  /** A time column that each action sets to the database's clock: `updated_at`, `failed_at`. */
  readonly stampColumn?: string | undefined
  /** Other columns to write into a row that is requeued or given up. */
  readonly set?: RowPatch | undefined
  /** How many rows one batch handles: 1 to 1,000. Default 100. A run is at most 100 batches. */
  readonly batch?: number | undefined
  /** How often a maintenance loop runs the monitor, at most once in each of its rounds. Default 60,000. */
  readonly everyMs?: number | undefined
}

const names: readonly (keyof MonitorOptions)[] = [
  ...(['table', 'statusColumn', 'stuck', 'timeColumn', 'timeZone', 'olderThanMs', 'leaseColumn'] as const),
  ...(['action', 'requeueTo', 'failTo', 'attemptsColumn', 'maxAttempts', 'countsAttempts'] as const),
  ...(['errorColumn', 'reason', 'fenceColumn', 'stampColumn', 'set', 'batch', 'everyMs'] as const),
]

/** The options of a monitor, as far as they can be checked without the server. */
export interface MonitorRule {
  readonly schema: string
  readonly name: string
  readonly everyMs: number
  readonly table: string
  readonly statusColumn: string
  readonly stuck: readonly State[]
  readonly timeColumn: string
  readonly timeZone: string | undefined
  readonly olderThanMs: number
  readonly leaseColumn: string | undefined
  readonly action: 'requeue' | 'fail' | MonitorAction<never>
  readonly requeueTo: State | undefined
  readonly failTo: State | undefined
  readonly attemptsColumn: string | undefined
  readonly maxAttempts: number
  readonly countsAttempts: boolean
  readonly errorColumn: string | undefined
  readonly reason: string
  readonly fenceColumn: string | undefined
  readonly stampColumn: string | undefined
  readonly set: RowPatch
  readonly batch: number
}

/** @param schema the schema of Dibs, quoted for SQL */
export function readRule(name: string, options: MonitorOptions<never>, schema: string): MonitorRule {
  checkOptions(options, names)
  const stuck = readStates(options.stuck)
  const { given: table } = readTableName(options.table)
  const statusColumn = options.statusColumn ?? 'status'
  checkKey('timeColumn', options.timeColumn)
  for (const field of columns) if (options[field] !== undefined) checkKey(field, options[field])
  checkAction(options, stuck)
  if (options.reason !== undefined) {
    if (options.errorColumn === undefined) throw new InvalidInputError('reason', 'needs `errorColumn`')
    if (typeof options.reason !== 'string')
      throw new InvalidInputError('reason', `must be a text, not ${nameGiven(options.reason)}`)
    checkCharacters('reason', options.reason)
  }
  return {
    ...options,
    schema,
    name: checkKey('name', name),
    everyMs: checkDuration('everyMs', options.everyMs ?? EVERY_MS, 100, 2 ** 30),
    table,
    statusColumn,
    stuck,
    timeZone: options.timeZone === undefined ? undefined : checkZone(options.timeZone),
    olderThanMs: checkDuration('olderThanMs', options.olderThanMs),
    leaseColumn: options.leaseColumn,
    requeueTo: options.requeueTo,
    failTo: options.failTo,
    attemptsColumn: options.attemptsColumn,
    maxAttempts: checkCount('maxAttempts', options.maxAttempts ?? MAX_ATTEMPTS, 1_000_000),
    countsAttempts: options.countsAttempts ?? true,
    errorColumn: options.errorColumn,
    reason: options.reason ?? defaultReason(stuck),
    fenceColumn: options.fenceColumn,
    stampColumn: options.stampColumn,
    set: checkPatch('set', options.set ?? {}),
    batch: checkCount('batch', options.batch ?? BATCH, MAX_BATCH),
  }
}

const columns = [
  ...(['statusColumn', 'leaseColumn', 'attemptsColumn', 'errorColumn'] as const),
  ...(['fenceColumn', 'stampColumn'] as const),
]

function readStates(stuck: unknown): readonly State[] {
  const states = Array.isArray(stuck) ? stuck : [stuck]
  if (states.length === 0 || states.length > MAX_STATES)
    throw new InvalidInputError('stuck', `must be 1 to ${MAX_STATES} states, not ${states.length}`)
  return states.map((state) => checkState('stuck', state))
}

function checkState(field: string, state: unknown): State {
  if (typeof state === 'string' || typeof state === 'number' || typeof state === 'boolean') return state
  throw new InvalidInputError(
    field,
    `must be a state: a text, a number or a boolean, not ${nameGiven(state)}`,
  )
}

/** Checks that the options of an action are complete. Refuses options that the action ignores, because a user would expect them to work. */
function checkAction(options: MonitorOptions<never>, stuck: readonly State[]): void {
  const { action, requeueTo, failTo, attemptsColumn, countsAttempts } = options
  const isGiven = typeof action === 'function'
  if (!isGiven && action !== 'requeue' && action !== 'fail')
    throw new InvalidInputError('action', `must be 'requeue', 'fail' or a function, not ${showGiven(action)}`)
  for (const [field, to] of Object.entries({ requeueTo, failTo })) {
    if (to === undefined) continue
    checkState(field, to)
    if (stuck.some((state) => String(state) === String(to)))
      throw new InvalidInputError(
        field,
        `must not be one of the states in \`stuck\`: it would be stuck again`,
      )
  }
  if (action === 'requeue' && requeueTo === undefined)
    throw new InvalidInputError(
      'requeueTo',
      "must be given with the action 'requeue': the state in which a requeued row waits",
    )
  if (action === 'fail' && failTo === undefined)
    throw new InvalidInputError(
      'failTo',
      "must be given with the action 'fail': the state of a row that was given up",
    )
  for (const field of ['requeueTo', 'attemptsColumn'] as const)
    if (action === 'fail' && options[field] !== undefined)
      throw new InvalidInputError(field, "means nothing to the action 'fail', which puts no row back")
  for (const field of ['maxAttempts', 'countsAttempts'] as const)
    if (options[field] !== undefined && attemptsColumn === undefined)
      throw new InvalidInputError(field, 'needs `attemptsColumn`')
  if (countsAttempts !== undefined && typeof countsAttempts !== 'boolean')
    throw new InvalidInputError('countsAttempts', `must be true or false, not ${nameGiven(countsAttempts)}`)
  if (attemptsColumn !== undefined && failTo === undefined)
    throw new InvalidInputError(
      'failTo',
      'must be given with `attemptsColumn`: where does a row go that was tried too often?',
    )
  if (options.errorColumn !== undefined && failTo === undefined)
    throw new InvalidInputError('errorColumn', 'needs `failTo`: it is written where a row is given up')
}

function checkCount(field: string, count: unknown, most: number): number {
  if (typeof count === 'number' && Number.isSafeInteger(count) && count >= 1 && count <= most) return count
  const given = typeof count === 'number' ? String(count) : nameGiven(count)
  throw new InvalidInputError(field, `must be a whole number from 1 to ${most}, not ${given}`)
}

const defaultReason = (stuck: readonly State[]): string =>
  `${stuck.every((state) => state === 'EXECUTING') ? 'Execution' : 'Processing'} timeout - worker may have crashed`
