import { InvalidInputError } from '../errors.js'
import { duration, wholeNumber } from '../options/number-options.js'
import { checked, type Option, required, unchecked } from '../options/option.js'
import { optionTable } from '../options/option-table.js'
import { date, oneOf } from '../options/value-options.js'
import type { Tx } from '../postgres/executor.js'
import { MAX_INTEGER } from './job-definition.js'
import { storedString } from './stored-string.js'

/** Options of one job that is added. */
export interface AddOptions {
  /** When the job is due. Default: at once. */
  readonly runAt?: Date | undefined
  /** How long from now the job is due, by the database's clock. Excludes `runAt`. */
  readonly delayMs?: number | undefined
  /** Jobs of a higher priority run first, among jobs of the same name, version and queue. A whole number, also below zero. Default 0. */
  readonly priority?: number | undefined
  /** If no worker has started the job or its next attempt by then, none will, and the job ends as `expired`. Default: never. */
  readonly expiresAt?: Date | undefined
  /** A name for what the job belongs to, for people who search. Each attempt shows it. At most 1,000 characters. */
  readonly correlationId?: string | undefined
}

export interface AddManyOptions {
  /** Your transaction. The jobs exist if, and only if, the transaction commits. */
  readonly tx?: Tx | undefined
  /**
   * How workers learn of a job that you add in a transaction of another library. By default workers find the job by polling, because Dibs does not see that
   * commit. With `in-transaction` the notification is part of the transaction, so workers start at once. The price: all such commits in the database queue
   * for one lock.
   */
  readonly wake?: 'in-transaction' | undefined
}

export interface AddJobOptions extends AddOptions, AddManyOptions {}

/** One job of an `addMany` call, whatever its name. */
interface AnyJobToAdd extends AddOptions {
  /** The name of the job. */
  readonly name: string
  /** The input of the job. */
  readonly input?: unknown
}

/** The beginning of the year 1. An earlier time is more likely a mistake, and PostgreSQL cannot represent times before some year. */
const FIRST_TIME = -62_135_596_800_000

function checkTime(field: string, time: unknown): void {
  date().check(field, time)
  const at = (time as Date).getTime()
  if (at < FIRST_TIME) throw new InvalidInputError(field, `must be a Date from the year 1 on, not ${at}`)
}

const time = (): Option<Date> => checked(checkTime, { bounds: 'from the year 1 on' })

export const addOptions = optionTable<AddOptions>()('jobs.addMany, jobs', {
  runAt: time(),
  delayMs: duration({ min: 0 }),
  priority: wholeNumber({ default: 0, min: -MAX_INTEGER, max: MAX_INTEGER }),
  expiresAt: time(),
  correlationId: storedString({ max: 1_000 }),
})

export const addManyOptions = optionTable<AddManyOptions>()('jobs.addMany', {
  tx: unchecked(),
  wake: oneOf(['in-transaction']),
})

export const addJobOptions = optionTable<AddJobOptions>()('jobs.add', {
  ...addOptions.fields,
  ...addManyOptions.fields,
})

export const jobToAdd = optionTable<AnyJobToAdd>()('jobs.addMany, jobs', {
  ...{ name: required(unchecked<string>()), input: unchecked() },
  ...addOptions.fields,
})

/** Options of one job as the database gets them. */
export interface ResolvedAddOptions {
  readonly priority: number
  readonly runAt: number | undefined
  readonly delayMs: number | undefined
  readonly expiresAt: number | undefined
  readonly correlationId: string | null
}

/** @param options as one of the tables above has read them */
export function resolveAddOptions(options: AddOptions & { readonly priority: number }): ResolvedAddOptions {
  const { runAt, delayMs, priority, expiresAt, correlationId } = options
  if (runAt !== undefined && delayMs !== undefined)
    throw new InvalidInputError('delayMs', 'and `runAt` are two ways to say when the job is due; give one')
  return {
    priority,
    runAt: runAt?.getTime(),
    delayMs,
    expiresAt: expiresAt?.getTime(),
    correlationId: correlationId ?? null,
  }
}
