import { channel } from 'node:diagnostics_channel'
import type { AcquireFailure, LossReason } from '../errors.js'

/** Fields of all events: the instance that emits the event. */
export interface EventOrigin {
  readonly schema: string
  /** A number that tells the instances of this process apart, even on schemas of one name in two databases. */
  readonly instance: number
}

/** Fields of events about a key. Events do not show the key, because it may hold a name or an address. */
export interface KeyOrigin extends EventOrigin {
  /** The first part of the scope, and a star for each further part: `payments:*`. */
  readonly template: string
  /** A hash that tells keys apart. */
  readonly keyHash: string
  /** The `requestId` of the caller. */
  readonly requestId: string | undefined
}

/** Fields of events about a rate limit. Events do not show the subject. */
export interface RateOrigin extends EventOrigin {
  /** The name of the limit, and a star for the subject: `api:*`. */
  readonly template: string
  /** A hash that tells subjects apart. */
  readonly keyHash: string
}

/** Fields of events about a lock. Events do not show its name. */
export interface LockOrigin extends EventOrigin {
  /** The first part of the name, and a star for each further part: `till:*`. */
  readonly template: string
  /** A hash that tells locks apart. */
  readonly keyHash: string
}

/** Fields of events about a monitor. */
export interface MonitorOrigin extends EventOrigin {
  readonly monitor: string
  /** The name of the table, as in the definition of the monitor. */
  readonly table: string
}

/** Fields of events about a single flight. Events do not show its key. */
export interface FlightOrigin extends EventOrigin {
  /** The first part of the key, and a star for each further part: `fx:*`. */
  readonly template: string
  /** A hash that tells keys apart. */
  readonly keyHash: string
}

/** Fields of events about a job. */
export interface JobOrigin extends EventOrigin {
  /** The id of the job. */
  readonly id: string
  readonly name: string
  readonly attempt: number
}

/** The events of Dibs, by the name of their channel. Metrics and logs listen to them. Dibs works the same without listeners. */
export interface DibsEvents {
  /** A transaction met a conflict and will run again. */
  'dibs:transaction.retried': EventOrigin & {
    readonly attempt: number
    readonly delayMs: number
    readonly error: unknown
  }
  /** A transaction met a conflict and will not run again. */
  'dibs:transaction.gave-up': EventOrigin & {
    readonly attempts: number
    readonly elapsedMs: number
    readonly error: unknown
  }
  /** The reply to COMMIT, or to a statement that commits by itself, was lost. */
  'dibs:commit.unknown': EventOrigin & { readonly error: unknown }
  /** A function given to `tx.afterCommit` threw. The transaction is committed. */
  'dibs:after-commit.failed': EventOrigin & { readonly error: unknown }
  /** A connection was discarded and not returned to the pool. */
  'dibs:connection.discarded': EventOrigin & { readonly error: unknown }
  /** This process applied a migration. */
  'dibs:migration.applied': EventOrigin & {
    readonly version: number
    readonly migration: string
    readonly elapsedMs: number
  }
  /** A migration waits for another process, or for a table, and will try again. */
  'dibs:migration.waiting': EventOrigin & { readonly subject: string; readonly waitedMs: number }
  /** The listening connection is open. */
  'dibs:listener.connected': EventOrigin
  /** The listening connection is lost and will be reopened. Until then, callers that wait poll the database. */
  'dibs:listener.lost': EventOrigin & { readonly retryInMs: number; readonly error: unknown }
  /** A function that waits for wake-ups threw. */
  'dibs:subscriber.failed': EventOrigin & { readonly error: unknown }
  /** The embedded PostgreSQL starts. `step` says which step now takes a while. */
  'dibs:embedded.starting': EventOrigin & {
    readonly step: 'copying' | 'initializing' | 'starting' | 'waiting'
    readonly folder: string
  }
  /** The supervisor process of the embedded PostgreSQL is lost, and no new supervisor is available yet. Dibs tries again. */
  'dibs:embedded.lost': EventOrigin & { readonly retryInMs: number; readonly error: unknown }
  /** Several callers used a key at once, and this caller was refused. */
  'dibs:once.conflict': KeyOrigin & {
    readonly retryAfterMs: number
    readonly waitedMs: number
    readonly retries: number
  }
  /** A caller waited for another caller with the same key. */
  'dibs:once.waited': KeyOrigin & { readonly waitedMs: number; readonly retries: number }
  /** A stored outcome was returned again. */
  'dibs:once.replayed': KeyOrigin & { readonly attempt: number }
  /** A claim was taken over from a dead holder. `lost` is the number of attempts without a recorded outcome so far. */
  'dibs:once.taken-over': KeyOrigin & { readonly attempt: number; readonly lost: number }
  /** A key was used again for another request. */
  'dibs:once.mismatch': KeyOrigin
  /** A claim is held, because an attempt without a recorded outcome may have had its effect. */
  'dibs:once.ambiguous': KeyOrigin & { readonly attempt: number }
  /** Too many attempts have no recorded outcome, so the claim has failed. */
  'dibs:once.gave-up': KeyOrigin & { readonly attempt: number }
  /** A holder learned that it lost its claim: a write was refused, or its own clock passed the end of the lease (`deadline`). */
  'dibs:once.lost': KeyOrigin & {
    readonly fence: number
    readonly how: 'renewal' | 'step' | 'outcome' | 'deadline'
  }
  /** The work is done, but its outcome could not be stored. */
  'dibs:once.not-stored': KeyOrigin & { readonly error: unknown }
  /** An operation of another process was taken over and failed. `isFinal`: it failed for good, and is not tried again. */
  'dibs:operation.failed': KeyOrigin & {
    readonly operation: string
    readonly attempt: number
    readonly isFinal: boolean
    readonly error: unknown
  }
  /**
   * A round of maintenance has ended. `counts` has what it did, by the names of the report. Operations that it took over, and monitors, may still run; they
   * emit events of their own.
   */
  'dibs:maintenance.done': EventOrigin & { readonly counts: Readonly<Record<string, number>> }
  /** A part of a round of maintenance failed. The next round follows. */
  'dibs:maintenance.failed': EventOrigin & { readonly error: unknown }
  /** Another writer was first: a `setIfAbsent` found a value, or `compareAndSet` or `delete` found another version than the expected one. */
  'dibs:kv.conflict': EventOrigin & {
    readonly call: 'setIfAbsent' | 'compareAndSet' | 'delete'
    /** The first part of the key, and a star for each further part, for a metric. */
    readonly template: string
    /** A hash that tells keys apart without showing them. */
    readonly keyHash: string
  }
  /** A wait for rows of one of your own tables timed out. */
  'dibs:row.locked-out': EventOrigin & {
    /** The name of the table, as in the call. */
    readonly table: string
    /** 0 if the caller did not want to wait. */
    readonly waitedMs: number
    /** The number of sessions that blocked the wait, as far as this role may see. */
    readonly blockers: number
  }
  /** `verify` of an aggregate found parents that did not match their children. `isRepaired`: they are correct now. */
  'dibs:aggregate.drifted': EventOrigin & {
    readonly aggregate: string
    readonly count: number
    readonly isRepaired: boolean
  }
  /** A marked parent could not be counted. Dibs retries it after all other parents. `id`: the JSON of its key. */
  'dibs:aggregate.failed': EventOrigin & {
    readonly aggregate: string
    readonly id: string
    readonly error: unknown
  }
  /** A monitor has searched for stuck rows. The fields say what it found and did. */
  'dibs:monitor.ran': MonitorOrigin & {
    readonly requeued: number
    readonly failed: number
    readonly handled: number
    readonly left: number
    readonly errors: number
    readonly withoutTime: number
    readonly oldestMs: number
    readonly isMore: boolean
    readonly tookMs: number
  }
  /** A monitor has requeued rows, failed them, or had them handled, because their worker was dead or too slow. */
  'dibs:monitor.recovered': MonitorOrigin & {
    readonly requeued: number
    readonly failed: number
    readonly handled: number
  }
  /** A stuck row could not be changed, or its function threw. The other rows were done, and the next run tries this row again. */
  'dibs:monitor.row-failed': MonitorOrigin & {
    /** The key of the row. */
    readonly id: unknown
    readonly error: unknown
  }
  /** The requested amount did not fit into the remaining amount of a quota. */
  'dibs:quota.refused': EventOrigin & {
    /** The name of the quota. */
    readonly template: string
    /** A hash that tells subjects apart without showing them. */
    readonly keyHash: string
    readonly requested: number
    readonly remaining: number
  }
  /** Leased work is done, but its use of a quota could not be charged: other transactions held the row for too long. */
  'dibs:acquire.unsettled': EventOrigin & { readonly quota: string; readonly id: string }
  /** Leased work is done, but its outcome could not be stored. `kinds`: the kinds of its claims. */
  'dibs:acquire.not-stored': EventOrigin & {
    readonly kinds: readonly AcquireFailure['kind'][]
    readonly error: unknown
  }
  /** Some of several claims were refused, so none was made. `kinds`: the kinds of the refused claims. */
  'dibs:acquire.refused': EventOrigin & {
    readonly kinds: readonly AcquireFailure['kind'][]
    /** True if the same call would be refused again. */
    readonly isFinal: boolean
    readonly waitedMs: number
    readonly retries: number
  }
  /** A lock was acquired, after `waitedMs`. */
  'dibs:lock.acquired': LockOrigin & {
    readonly fence: number
    readonly waitedMs: number
    readonly tries: number
  }
  /** A caller waits for a lock that another caller holds. */
  'dibs:lock.contended': LockOrigin & { readonly state: 'held' | 'guarded' | 'busy' }
  /** A caller did not get a lock: its wait timed out, or it did not want to wait. */
  'dibs:lock.timed-out': LockOrigin & { readonly waitedMs: number; readonly tries: number }
  /** A lock was released, after `heldMs`. */
  'dibs:lock.released': LockOrigin & { readonly fence: number; readonly heldMs: number }
  /** A lock could not be released. The lock stays held until its lease expires. */
  'dibs:lock.not-released': LockOrigin & { readonly fence: number; readonly error: unknown }
  /** A holder learned that it lost its lock. */
  'dibs:lock.lost': LockOrigin & {
    readonly fence: number
    readonly reason: LossReason
    readonly heldMs: number
  }
  /** A lock was taken over from a dead holder (`takeover`), or taken away by an operator (`force`). */
  'dibs:lock.stolen': LockOrigin & {
    readonly how: 'takeover' | 'force'
    readonly fromFence: number
    /** How long the lock had no live holder. 0 if an operator took it away. */
    readonly idleMs: number
  }
  /** A late write of a holder that lost its lock was refused: a transaction at its `guard`, or a row of a store elsewhere. */
  'dibs:lock.fence-rejected': LockOrigin & { readonly fence: number; readonly where: 'guard' | 'store' }
  /** This process became the leader. `isTakeover`: the previous leader did not resign. */
  'dibs:leader.elected': EventOrigin & {
    readonly election: string
    readonly epoch: number
    readonly isTakeover: boolean
  }
  /** This process is no longer the leader. */
  'dibs:leader.lost': EventOrigin & {
    readonly election: string
    readonly epoch: number
    readonly reason: LossReason
    readonly ledMs: number
  }
  /** A candidate could not reach the database, or the leader's function failed. The candidate continues after a pause. */
  'dibs:leader.failed': EventOrigin & { readonly election: string; readonly error: unknown }
  /** One caller loaded a value for all callers. `isKept` is false if the key was forgotten meanwhile. */
  'dibs:flight.loaded': FlightOrigin & {
    readonly fence: number
    readonly loadMs: number
    /** True if the other callers got the old value during the load, because it was stale or soon would be. */
    readonly isBackground: boolean
    readonly isKept: boolean
  }
  /** A load failed. After a failed background load, no caller gets the error, and the old value stays. */
  'dibs:flight.failed': FlightOrigin & {
    readonly fence: number
    readonly loadMs: number
    readonly isBackground: boolean
    readonly error: unknown
  }
  /** A load lost its lead, so its value is not stored. Another caller loads instead. */
  'dibs:flight.refused': FlightOrigin & { readonly fence: number; readonly loadMs: number }
  /** A loaded value could not be published, because the database was unavailable. Only its own caller has the value. */
  'dibs:flight.not-published': FlightOrigin & { readonly fence: number; readonly error: unknown }
  /** A stored value does not fit the `result` schema of a caller, and is loaded again. */
  'dibs:flight.unfit': FlightOrigin & { readonly fence: number; readonly error: unknown }
  /** A caller waited for the load of another caller. */
  'dibs:flight.waited': FlightOrigin & {
    readonly waitedMs: number
    readonly how: 'value' | 'error' | 'timed out'
  }
  /** The `waitMs` of a caller has passed, or the caller could not reach the database (`error`). `ifBusy` says what the caller does. */
  'dibs:flight.timed-out': FlightOrigin & {
    readonly waitedMs: number
    readonly ifBusy: 'fail' | 'load' | 'serve-stale'
    readonly error: unknown
  }
  /** A rate limit refused a request. */
  'dibs:rate.refused': RateOrigin & { readonly cost: number; readonly retryAfterMs?: number }
  /** The database of a rate limit is unavailable, so the `policy` decided. */
  'dibs:rate.degraded': RateOrigin & { readonly policy: 'allow' | 'local'; readonly error: unknown }
  /** The idempotency middleware responded with a status of 500 or more in place of a handler. `problem`: the name of the problem. */
  'dibs:http.failed': EventOrigin & {
    readonly problem: string
    readonly method: string
    /** The path without its query. */
    readonly path: string
    readonly error: unknown
  }
  /** A worker now takes jobs. */
  'dibs:worker.started': EventOrigin & { readonly worker: string; readonly lanes: number }
  /** A worker has stopped taking jobs, and has released the jobs that it had. */
  'dibs:worker.stopped': EventOrigin & { readonly worker: string }
  /** A statement of this instance's workers could not be sent, or failed. The workers retry it. */
  'dibs:worker.failed': EventOrigin & {
    readonly what:
      | 'start'
      | 'claim'
      | 'heartbeat'
      | 'outcomes'
      | 'promotion'
      | 'recovery'
      | 'expiry'
      | 'history'
    readonly error: unknown
  }
  /** The database was unavailable five times in a row. The workers claim no jobs for 30 seconds. */
  'dibs:worker.breaker-opened': EventOrigin & { readonly error: unknown }
  /** The database is available again. */
  'dibs:worker.breaker-closed': EventOrigin
  /** A job succeeded, and that is recorded. */
  'dibs:job.succeeded': JobOrigin
  /** A handler failed: for good (`isFinal`), or the job is retried after `retryInMs`. */
  'dibs:job.failed': JobOrigin & {
    readonly isFinal: boolean
    /** True if the handler asked for more time, which is not a failure. */
    readonly isSnoozed: boolean
    readonly retryInMs: number
    readonly error: unknown
  }
  /** No transaction could begin for a handler, so the handler did not run. The job is released for `retryInMs`, and the attempt does not count. */
  'dibs:job.not-started': JobOrigin & { readonly retryInMs: number; readonly error: unknown }
  /** A job that a worker had was canceled, and that is recorded. A waiting job that is canceled emits no event, because the caller of `cancel` knows. */
  'dibs:job.canceled': JobOrigin
  /** A worker lost a job while its handler ran: another worker has the job, or may have it. */
  'dibs:job.lost': JobOrigin & { readonly fence: number; readonly reason: 'stolen' | 'lost contact' }
  /** A handler ended too late: another worker has the job, or has had it. Nothing was changed. */
  'dibs:job.refused': JobOrigin & { readonly fence: number }
  /** A handler that was asked to stop still runs. Its slot was freed for another job. */
  'dibs:job.stuck': JobOrigin
  /** The server refused to record the end of an attempt. The lease expires. */
  'dibs:job.not-recorded': JobOrigin & { readonly fence: number; readonly error: unknown }
  /** A job was taken from a dead worker. The job is ready again, dead after its last attempt, or canceled as requested before (`state`). */
  'dibs:job.recovered': JobOrigin & {
    readonly queue: string
    readonly worker: string
    readonly fence: number
    readonly state: 'ready' | 'dead' | 'canceled'
  }
  /** A job could not be claimed. Dibs set it aside as dead (`isSetAside`). If even that failed, workers skip the job. */
  'dibs:job.quarantined': EventOrigin & { readonly id: string; readonly isSetAside: boolean }
  /** A handler called `ctx.log`. */
  'dibs:job.logged': JobOrigin & {
    readonly level: 'debug' | 'info' | 'warn' | 'error'
    readonly message: string
    readonly fields: object | undefined
  }
  /** A wake-up notification could not be sent. Callers that wait find out by polling. */
  'dibs:wakeup.failed': EventOrigin & { readonly error: unknown }
}

let instances = 0

/** Makes the origin of the events of a new instance. */
export function newOrigin(schema: string): EventOrigin {
  return Object.freeze({ schema, instance: ++instances })
}

export type DibsEventName = keyof DibsEvents

/** Events about one claim. */
export type ClaimEventName = Extract<DibsEventName, `dibs:once.${string}` | `dibs:operation.${string}`>

/** Publishes an event. Without listeners, the cost is one check. */
export function emit<N extends DibsEventName>(name: N, payload: DibsEvents[N]): void {
  const target = channel(name)
  if (target.hasSubscribers) target.publish(payload)
}

/** True if the event has a listener. For events whose payload is expensive to make. */
export const isHeard = (name: DibsEventName): boolean => channel(name).hasSubscribers

/** Calls `listener` for each event of one name in this process, without checks. Returns a function that stops it. */
function subscribe<N extends DibsEventName>(name: N, listener: (payload: DibsEvents[N]) => void): () => void {
  const target = channel(name)
  const receive = (message: unknown): void => listener(message as DibsEvents[N])
  target.subscribe(receive)
  return () => {
    target.unsubscribe(receive)
  }
}

// For use inside Dibs. The public `onEvent` is in on-event.ts.
export { subscribe as onEvent }
