import { InvalidInputError } from '../errors.js'
import { type DibsEventName, type DibsEvents, type EventOrigin, onEvent } from './events.js'
import type { Logger } from './logger.js'
import { hasMethods, nameGiven } from './name-given.js'
import { StderrLogger } from './stderr-logger.js'

type Line = readonly [level: keyof Logger, message: string]

const lines: { readonly [N in DibsEventName]: Line } = {
  'dibs:transaction.retried': ['debug', 'transaction met a conflict and runs again'],
  'dibs:transaction.gave-up': ['warn', 'transaction met a conflict and gave up'],
  'dibs:commit.unknown': ['error', 'connection lost while committing: the outcome is unknown'],
  'dibs:after-commit.failed': [
    'error',
    'a function given to afterCommit failed; the transaction is committed',
  ],
  'dibs:connection.discarded': ['warn', 'broken connection thrown away'],
  'dibs:migration.applied': ['info', 'migration applied'],
  'dibs:migration.waiting': ['debug', 'migration waits'],
  'dibs:listener.connected': ['debug', 'listening for wake-ups'],
  'dibs:listener.lost': ['warn', 'listening connection lost; polling until it is back'],
  'dibs:subscriber.failed': ['error', 'a function that waits for wake-ups failed'],
  'dibs:embedded.starting': ['info', 'embedded PostgreSQL starts'],
  'dibs:embedded.lost': ['error', 'embedded PostgreSQL lost its keeper; trying to get another'],
  'dibs:once.conflict': ['debug', 'key is in use by another caller'],
  'dibs:once.waited': ['debug', 'waited for another caller with the same key'],
  'dibs:once.replayed': ['debug', 'outcome replayed'],
  'dibs:once.taken-over': ['warn', 'claim taken over from a holder that is gone'],
  'dibs:once.mismatch': ['warn', 'key used again for another request'],
  'dibs:once.ambiguous': ['warn', 'claim held back: an attempt has no recorded outcome'],
  'dibs:once.gave-up': ['error', 'claim failed after too many attempts without a recorded outcome'],
  'dibs:once.lost': ['warn', 'claim lost to another holder; nothing was written'],
  'dibs:once.not-stored': ['error', 'work is done, but its outcome could not be stored'],
  'dibs:operation.failed': ['warn', 'operation failed after a takeover'],
  'dibs:maintenance.done': ['debug', 'a round of maintenance is done'],
  'dibs:maintenance.failed': ['warn', 'a part of a round of maintenance failed'],
  'dibs:kv.conflict': ['debug', 'somebody else was first at a key'],
  'dibs:row.locked-out': ['debug', 'waited in vain for rows of a table'],
  'dibs:aggregate.drifted': ['warn', 'parents were not what their children say'],
  'dibs:aggregate.failed': ['warn', 'a parent that was marked could not be counted'],
  'dibs:monitor.ran': ['debug', 'a monitor has run'],
  'dibs:monitor.recovered': ['warn', 'rows that were stuck have been recovered'],
  'dibs:monitor.row-failed': ['error', 'a row that is stuck could not be recovered'],
  'dibs:quota.refused': ['debug', 'what was asked for did not fit into what is left of a quota'],
  'dibs:acquire.unsettled': ['warn', 'what was reserved is used, and could not be charged'],
  'dibs:acquire.not-stored': ['error', 'work is done, but its outcome could not be stored'],
  'dibs:acquire.refused': ['debug', 'what was claimed together was refused'],
  'dibs:lock.acquired': ['debug', 'lock acquired'],
  'dibs:lock.contended': ['debug', 'lock is held by another'],
  'dibs:lock.timed-out': ['debug', 'lock could not be had in time'],
  'dibs:lock.released': ['debug', 'lock released'],
  'dibs:lock.not-released': ['warn', 'lock could not be given back; its lease runs out by itself'],
  'dibs:lock.lost': ['warn', 'lock lost while it was held'],
  'dibs:lock.stolen': ['warn', 'lock taken from its holder'],
  'dibs:lock.fence-rejected': ['warn', 'late write refused: a later holder has the lock'],
  'dibs:leader.elected': ['info', 'this process leads'],
  'dibs:leader.lost': ['info', 'this process leads no more'],
  'dibs:leader.failed': ['warn', 'a candidate or a leader failed; it goes on after a while'],
  'dibs:flight.loaded': ['debug', 'value loaded for all who ask for it'],
  'dibs:flight.failed': ['warn', 'load failed for all who wait for it'],
  'dibs:flight.refused': ['warn', 'late load not kept: another has loaded in its place'],
  'dibs:flight.not-published': ['warn', 'load not published: the database could not be asked'],
  'dibs:flight.unfit': ['warn', 'stored value does not fit its schema: loaded anew'],
  'dibs:flight.waited': ['debug', 'waited for the load of another'],
  'dibs:flight.timed-out': ['debug', 'load of another did not end in time'],
  'dibs:rate.refused': ['debug', 'rate limit refused'],
  'dibs:rate.degraded': ['warn', 'the store of a rate limit is down; its policy has answered'],
  'dibs:http.failed': ['error', 'a request was answered in place of its handler'],
  'dibs:worker.started': ['info', 'worker takes jobs'],
  'dibs:worker.stopped': ['info', 'worker has stopped'],
  'dibs:worker.failed': ['warn', 'a statement of the workers failed; it is tried again'],
  'dibs:worker.breaker-opened': ['error', 'database is away: no jobs are claimed for 30 seconds'],
  'dibs:worker.breaker-closed': ['info', 'database is there again: jobs are claimed'],
  'dibs:job.succeeded': ['debug', 'job done'],
  'dibs:job.failed': ['warn', 'job failed; it is tried again'],
  'dibs:job.not-started': ['warn', 'job released: no transaction could be begun for its handler'],
  'dibs:job.canceled': ['debug', 'job canceled'],
  'dibs:job.lost': ['warn', 'job lost while its handler ran'],
  'dibs:job.refused': ['warn', 'late end of a job refused: another has it'],
  'dibs:job.stuck': ['warn', 'handler goes on though its job is over; its slot was given to another'],
  'dibs:job.not-recorded': ['error', 'end of a job could not be recorded; its lease runs out by itself'],
  'dibs:job.recovered': ['warn', 'job taken from a worker that is gone'],
  'dibs:job.quarantined': ['error', 'job could not be claimed; the others go on'],
  'dibs:job.logged': ['info', 'a handler says'],
  'dibs:wakeup.failed': ['debug', 'wake-up notification not sent'],
}

export const isEventName = (name: unknown): boolean => typeof name === 'string' && Object.hasOwn(lines, name)

/**
 * pino writes a field `err` with type, message and stack; other names would lose the stack. And its own fields stay as they are: a logger has a `name`, and each line a `level` and a message.
 */
function toFields(payload: EventOrigin & { readonly error?: unknown }): object {
  const {
    error,
    name,
    level: _,
    message: __,
    ...fields
  } = payload as typeof payload & Record<string, unknown>
  return {
    ...fields,
    ...(name === undefined ? {} : { subject: name }),
    ...(error === undefined ? {} : { err: error }),
  }
}

/** Events whose level depends on what they tell. */
const changing: { readonly [N in DibsEventName]?: (payload: DibsEvents[N]) => Line | undefined } = {
  // A message of a handler has its own level and text.
  'dibs:job.logged': ({ level, message }) => [level, message],
  'dibs:job.failed': ({ isFinal, isSnoozed }) => {
    if (isSnoozed) return ['debug', 'job snoozed']
    return isFinal ? ['error', 'job is dead: its handler failed for good'] : undefined
  },
  'dibs:job.recovered': ({ state }) =>
    state === 'dead' ? ['error', 'job is dead: its last worker is gone'] : undefined,
}

export function checkLogger(logger: unknown): void {
  if (hasMethods(logger, 'debug', 'info', 'warn', 'error')) return
  throw new InvalidInputError(
    'logger',
    `must be false, or have the methods debug, info, warn and error, as a pino logger has, not ${nameGiven(logger)}`,
  )
}

/** Writes the events of one instance to a logger; without one, failures go to stderr. `false`: nothing is written. Returns what ends it. */
export function logEvents(logger: Logger | false | undefined, instance: number): () => void {
  if (logger === false) return () => {}
  if (logger === undefined) {
    const own = new StderrLogger()
    const stop = subscribe(own, instance, failures)
    return () => {
      stop()
      own.close()
    }
  }
  return subscribe(logger, instance, Object.keys(lines) as DibsEventName[])
}

/** Events that stderr gets. Nobody listens to the others, which some statements tell for each call. */
const failures = (Object.keys(lines) as DibsEventName[]).filter(
  (name) => ['warn', 'error'].includes(lines[name][0]) || changing[name] !== undefined,
)

function subscribe(logger: Logger, instance: number, names: readonly DibsEventName[]): () => void {
  const stops = names.map((name) =>
    onEvent(name, (payload: DibsEvents[DibsEventName]) => {
      if (payload.instance !== instance) return
      try {
        const [level, message] = lineOf(name, payload)
        const written: unknown = logger[level]({ event: name, ...toFields(payload) }, message)
        if (written instanceof Promise) written.catch(() => {})
      } catch {
        // A log that is full or broken is no reason to end the process, and there is nowhere to say so.
      }
    }),
  )
  return () => {
    for (const stop of stops) stop()
  }
}

function lineOf<N extends DibsEventName>(name: N, payload: DibsEvents[N]): Line {
  return changing[name]?.(payload) ?? lines[name]
}
