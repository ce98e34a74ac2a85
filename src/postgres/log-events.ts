import { InvalidInputError } from '../errors.js'
import { hasMethods, nameGiven } from '../options/name-given.js'
import { type DibsEventName, type DibsEvents, type EventOrigin, onEvent } from './events.js'
import type { Logger } from './logger.js'
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
  'dibs:connection.discarded': ['warn', 'broken connection discarded'],
  'dibs:migration.applied': ['info', 'migration applied'],
  'dibs:migration.waiting': ['debug', 'migration waits'],
  'dibs:listener.connected': ['debug', 'listening for wake-ups'],
  'dibs:listener.lost': ['warn', 'listening connection lost; polling until it is back'],
  'dibs:subscriber.failed': ['error', 'a function that waits for wake-ups failed'],
  'dibs:embedded.starting': ['info', 'embedded PostgreSQL starts'],
  'dibs:embedded.lost': ['error', 'embedded PostgreSQL lost its supervisor; starting another'],
  'dibs:once.conflict': ['debug', 'key is in use by another caller'],
  'dibs:once.waited': ['debug', 'waited for another caller with the same key'],
  'dibs:once.replayed': ['debug', 'outcome replayed'],
  'dibs:once.taken-over': ['warn', 'claim taken over from a dead holder'],
  'dibs:once.mismatch': ['warn', 'key used again for another request'],
  'dibs:once.ambiguous': ['warn', 'claim held back: an attempt has no recorded outcome'],
  'dibs:once.gave-up': ['error', 'claim failed after too many attempts without a recorded outcome'],
  'dibs:once.lost': ['warn', 'claim lost to another holder; nothing was written'],
  'dibs:once.not-stored': ['error', 'work is done, but its outcome could not be stored'],
  'dibs:operation.failed': ['warn', 'operation failed after a takeover'],
  'dibs:maintenance.done': ['debug', 'a round of maintenance is done'],
  'dibs:maintenance.failed': ['warn', 'a part of a round of maintenance failed'],
  'dibs:kv.conflict': ['debug', 'another writer was first at a key'],
  'dibs:row.locked-out': ['debug', 'wait for rows of a table timed out'],
  'dibs:aggregate.drifted': ['warn', 'parents did not match their children'],
  'dibs:aggregate.failed': ['warn', 'a marked parent could not be counted'],
  'dibs:monitor.ran': ['debug', 'a monitor has run'],
  'dibs:monitor.recovered': ['warn', 'stuck rows were recovered'],
  'dibs:monitor.row-failed': ['error', 'a stuck row could not be recovered'],
  'dibs:quota.refused': ['debug', 'quota refused: the amount does not fit'],
  'dibs:acquire.unsettled': ['warn', 'reserved amount is used, but could not be charged'],
  'dibs:acquire.not-stored': ['error', 'work is done, but its outcome could not be stored'],
  'dibs:acquire.refused': ['debug', 'several claims were refused together'],
  'dibs:lock.acquired': ['debug', 'lock acquired'],
  'dibs:lock.contended': ['debug', 'lock is held by another'],
  'dibs:lock.timed-out': ['debug', 'lock was not acquired in time'],
  'dibs:lock.released': ['debug', 'lock released'],
  'dibs:lock.not-released': ['warn', 'lock could not be released; its lease expires'],
  'dibs:lock.lost': ['warn', 'lock lost while it was held'],
  'dibs:lock.stolen': ['warn', 'lock taken from its holder'],
  'dibs:lock.fence-rejected': ['warn', 'late write refused: a later holder has the lock'],
  'dibs:leader.elected': ['info', 'this process is the leader'],
  'dibs:leader.lost': ['info', 'this process is no longer the leader'],
  'dibs:leader.failed': ['warn', 'a candidate or a leader failed; it continues after a pause'],
  'dibs:flight.loaded': ['debug', 'value loaded for all callers'],
  'dibs:flight.failed': ['warn', 'load failed for all callers'],
  'dibs:flight.refused': ['warn', 'late load not kept: another caller loads instead'],
  'dibs:flight.not-published': ['warn', 'load not published: the database is unavailable'],
  'dibs:flight.unfit': ['warn', 'stored value does not fit its schema: loaded again'],
  'dibs:flight.waited': ['debug', 'waited for the load of another caller'],
  'dibs:flight.timed-out': ['debug', 'load of another caller did not end in time'],
  'dibs:rate.refused': ['debug', 'rate limit refused'],
  'dibs:rate.degraded': ['warn', 'database of a rate limit is unavailable; its policy decided'],
  'dibs:http.failed': ['error', 'responded with an error in place of a handler'],
  'dibs:worker.started': ['info', 'worker takes jobs'],
  'dibs:worker.stopped': ['info', 'worker has stopped'],
  'dibs:worker.failed': ['warn', 'a statement of the workers failed; it is tried again'],
  'dibs:worker.breaker-opened': ['error', 'database is unavailable: no jobs are claimed for 30 seconds'],
  'dibs:worker.breaker-closed': ['info', 'database is available again: jobs are claimed'],
  'dibs:job.succeeded': ['debug', 'job done'],
  'dibs:job.failed': ['warn', 'job failed; it is tried again'],
  'dibs:job.not-started': ['warn', 'job released: no transaction could be begun for its handler'],
  'dibs:job.canceled': ['debug', 'job canceled'],
  'dibs:job.lost': ['warn', 'job lost while its handler ran'],
  'dibs:job.refused': ['warn', 'late end of a job refused: another worker has it'],
  'dibs:job.stuck': ['warn', 'handler still runs after its job ended; its slot is free for another job'],
  'dibs:job.not-recorded': ['error', 'end of a job could not be recorded; its lease expires'],
  'dibs:job.recovered': ['warn', 'job recovered from a dead worker'],
  'dibs:job.quarantined': ['error', 'job could not be claimed; other jobs go on'],
  'dibs:job.logged': ['info', 'log line of a handler'],
  'dibs:wakeup.failed': ['debug', 'wake-up notification not sent'],
}

export const isEventName = (name: unknown): boolean => typeof name === 'string' && Object.hasOwn(lines, name)

/**
 * Makes the fields of a log line. pino writes type, message and stack of a field `err`. pino itself uses the fields
 * `name` and `level`.
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

/** Events whose level depends on their fields. */
const variableLines: { readonly [N in DibsEventName]?: (payload: DibsEvents[N]) => Line | undefined } = {
  // A message of a handler brings its level and text.
  'dibs:job.logged': ({ level, message }) => [level, message],
  'dibs:job.failed': ({ isFinal, isSnoozed }) => {
    if (isSnoozed) return ['debug', 'job snoozed']
    return isFinal ? ['error', 'job is dead: its handler failed for good'] : undefined
  },
  'dibs:job.recovered': ({ state }) =>
    state === 'dead' ? ['error', 'job is dead: its last worker died'] : undefined,
}

export function checkLogger(field: string, logger: unknown): void {
  if (logger === false || hasMethods(logger, 'debug', 'info', 'warn', 'error')) return
  throw new InvalidInputError(
    field,
    `must be false, or have the methods debug, info, warn and error, as a pino logger has, not ${nameGiven(logger)}`,
  )
}

/** Writes the events of one instance to a logger. Without a logger, writes failures to stderr. Returns a function that stops it. */
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

/** Events that go to stderr. Without listeners, the other events cost nothing, though some occur at each call. */
const failures = (Object.keys(lines) as DibsEventName[]).filter(
  (name) => ['warn', 'error'].includes(lines[name][0]) || variableLines[name] !== undefined,
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
        // A broken log must not end the process, and there is nowhere to report it.
      }
    }),
  )
  return () => {
    for (const stop of stops) stop()
  }
}

function lineOf<N extends DibsEventName>(name: N, payload: DibsEvents[N]): Line {
  return variableLines[name]?.(payload) ?? lines[name]
}
