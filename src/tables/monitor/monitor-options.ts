import { InvalidInputError } from '../../errors.js'
import { checkZone } from '../../options/check-zone.js'
import { nameGiven, showGiven } from '../../options/name-given.js'
import { duration, wholeNumber } from '../../options/number-options.js'
import { checked, required } from '../../options/option.js'
import { optionTable, type ReadOptions } from '../../options/option-table.js'
import { boolean } from '../../options/value-options.js'
import type { Row } from '../../postgres/executor.js'
import { checkCharacters, checkKey } from '../../postgres/key.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import { readTableName } from '../catalog/table-name.js'
import type { State } from '../rows/transition.js'
import { checkPatch, type RowPatch } from '../sql-values.js'

const MAX_STATES = 20

/** The decision about a stuck row. `leave` or undefined: the row stays as it is, and the next run finds it again. */
export type MonitorVerdict = 'requeue' | 'fail' | 'leave' | { readonly set: RowPatch } | undefined

/** Decides about one row, in a transaction that has locked the row. The function's writes through `tx` commit with its verdict. */
export type MonitorAction<R extends object = Row> = (row: R, tx: Transaction) => Promise<MonitorVerdict>

export interface MonitorOptions<R extends object = Row> {
  /** The table whose rows are worked on. */
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

export const monitorOptions = optionTable<MonitorOptions<never>>()('dibs.monitor', {
  table: required(checked((field, value) => readTableName(value, field))),
  statusColumn: checked(checkKey, { default: 'status' }),
  stuck: required(checked(checkStates)),
  timeColumn: required(checked(checkKey)),
  timeZone: checked((_, value) => checkZone(value)),
  olderThanMs: required(duration()),
  leaseColumn: checked(checkKey),
  action: required(checked(checkAction)),
  requeueTo: checked(checkState),
  failTo: checked(checkState),
  attemptsColumn: checked(checkKey),
  maxAttempts: wholeNumber({ default: 3, max: 1_000_000 }),
  countsAttempts: boolean({ default: true }),
  errorColumn: checked(checkKey),
  reason: checked(checkReason),
  fenceColumn: checked(checkKey),
  stampColumn: checked(checkKey),
  set: checked(checkPatch, { default: {} }),
  batch: wholeNumber({ default: 100, max: 1_000 }),
  everyMs: duration({ default: 60_000, min: 100, max: 2 ** 30 }),
})

type ReadMonitorOptions = ReadOptions<MonitorOptions<never>, typeof monitorOptions.fields>

/** The options of a monitor, as far as they can be checked without the server. */
export interface MonitorRule extends Omit<ReadMonitorOptions, 'stuck' | 'reason'> {
  readonly schema: string
  readonly name: string
  readonly stuck: readonly State[]
  readonly reason: string
}

/** @param schema the schema of Dibs, quoted for SQL */
export function readRule(name: string, options: MonitorOptions<never>, schema: string): MonitorRule {
  const read = monitorOptions.read(options)
  const stuck = toStates(read.stuck)
  checkCombinations(options, stuck)
  return { ...read, schema, name: checkKey('name', name), stuck, reason: read.reason ?? defaultReason(stuck) }
}

const toStates = (stuck: State | readonly State[]): readonly State[] =>
  Array.isArray(stuck) ? stuck : [stuck as State]

function checkStates(field: string, stuck: unknown): void {
  const states: readonly unknown[] = Array.isArray(stuck) ? stuck : [stuck]
  if (states.length === 0 || states.length > MAX_STATES)
    throw new InvalidInputError(field, `must be 1 to ${MAX_STATES} states, not ${states.length}`)
  for (const state of states) checkState(field, state)
}

function checkState(field: string, state: unknown): void {
  if (typeof state === 'string' || typeof state === 'number' || typeof state === 'boolean') return
  throw new InvalidInputError(
    field,
    `must be a state: a string, a number or a boolean, not ${nameGiven(state)}`,
  )
}

function checkAction(field: string, action: unknown): void {
  if (typeof action !== 'function' && action !== 'requeue' && action !== 'fail')
    throw new InvalidInputError(field, `must be 'requeue', 'fail' or a function, not ${showGiven(action)}`)
}

function checkReason(field: string, reason: unknown): void {
  if (typeof reason !== 'string')
    throw new InvalidInputError(field, `must be a string, not ${nameGiven(reason)}`)
  checkCharacters(field, reason)
}

/** Checks that the options of an action are complete. Refuses options that the action ignores, because a user would expect them to work. */
function checkCombinations(options: MonitorOptions<never>, stuck: readonly State[]): void {
  const { action, requeueTo, failTo, attemptsColumn, errorColumn } = options
  if (options.reason !== undefined && errorColumn === undefined)
    throw new InvalidInputError('reason', 'needs `errorColumn`')
  for (const [field, to] of Object.entries({ requeueTo, failTo })) {
    if (to === undefined) continue
    if (stuck.some((state) => String(state) === String(to)))
      throw new InvalidInputError(field, 'must not be one of the states in `stuck`')
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
      throw new InvalidInputError(field, "has no effect with the action 'fail', which requeues no row")
  for (const field of ['maxAttempts', 'countsAttempts'] as const)
    if (options[field] !== undefined && attemptsColumn === undefined)
      throw new InvalidInputError(field, 'needs `attemptsColumn`')
  if (attemptsColumn !== undefined && failTo === undefined)
    throw new InvalidInputError(
      'failTo',
      'must be given with `attemptsColumn`: the state of a row that has had `maxAttempts`',
    )
  if (errorColumn !== undefined && failTo === undefined)
    throw new InvalidInputError('errorColumn', 'needs `failTo`: the column is written when a row is given up')
}

const defaultReason = (stuck: readonly State[]): string =>
  `${stuck.every((state) => state === 'EXECUTING') ? 'Execution' : 'Processing'} timeout - worker may have crashed`
