import { channel } from 'node:diagnostics_channel'
import type { LossReason } from '../errors.js'

/** Common to all events: which instance tells it. */
export interface EventOrigin {
  readonly schema: string
  /** Tells instances of this process apart, also those on schemas of one name in two databases. */
  readonly instance: number
}

/** Common to events about a key, which is not shown: it may hold a name or an address. */
export interface KeyOrigin extends EventOrigin {
  /** The scope without what is different in each: `payments:*`. */
  readonly template: string
  /** Tells keys apart. */
  readonly keyHash: string
  /** What the caller gave as `requestId`. */
  readonly requestId: string | undefined
}

/** Common to events about a rate limit and a subject, which is not shown. */
export interface RateOrigin extends EventOrigin {
  /** The name of the limit, and a star for the subject: `api:*`. */
  readonly template: string
  /** Tells subjects apart. */
  readonly keyHash: string
}

/** Common to events about a lock, whose name is not shown. */
export interface LockOrigin extends EventOrigin {
  /** The name without what is different in each: `till:*`. */
  readonly template: string
  /** Tells locks apart. */
  readonly keyHash: string
}

/** Common to events about a monitor. */
export interface MonitorOrigin extends EventOrigin {
  readonly monitor: string
  /** As its definition names it. */
  readonly table: string
}

/** Common to events about a single flight, whose key is not shown. */
export interface FlightOrigin extends EventOrigin {
  /** The key without what is different in each: `fx:*`. */
  readonly template: string
  /** Tells keys apart. */
  readonly keyHash: string
}

/** Common to events about a job. */
export interface JobOrigin extends EventOrigin {
  /** Of the job. */
  readonly id: string
  readonly name: string
  readonly attempt: number
}

/**
 * What Dibs tells while it works, by the name of its channel. Metrics and logs listen; nothing here depends on
 * being heard.
 */
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
  /** A reply was lost after COMMIT, or a statement that commits by itself, was sent. */
  'dibs:commit.unknown': EventOrigin & { readonly error: unknown }
  /** A function given to `tx.afterCommit` threw; the transaction is committed all the same. */
  'dibs:after-commit.failed': EventOrigin & { readonly error: unknown }
  /** A connection was thrown away instead of going back to the pool. */
  'dibs:connection.discarded': EventOrigin & { readonly error: unknown }
  /** A migration was applied by this process. */
  'dibs:migration.applied': EventOrigin & {
    readonly version: number
    readonly migration: string
    readonly elapsedMs: number
  }
  /** A migration waits for its turn, or for a table, and will look again. */
  'dibs:migration.waiting': EventOrigin & { readonly subject: string; readonly waitedMs: number }
  /** The listening connection stands. */
  'dibs:listener.connected': EventOrigin
  /** The listening connection is lost and will be made again; until then waiting is by polling. */
  'dibs:listener.lost': EventOrigin & { readonly retryInMs: number; readonly error: unknown }
  /** A function that waits for wake-ups threw. */
  'dibs:subscriber.failed': EventOrigin & { readonly error: unknown }
  /** The embedded PostgreSQL is being started; `step` takes a while. */
  'dibs:embedded.starting': EventOrigin & {
    readonly step: 'copying' | 'initializing' | 'starting' | 'waiting'
    readonly folder: string
  }
  /** The keeper of the embedded PostgreSQL is lost, and no other could be had yet. */
  'dibs:embedded.lost': EventOrigin & { readonly retryInMs: number; readonly error: unknown }
  /** A key was used by several callers at once, and one was turned away. */
  'dibs:once.conflict': KeyOrigin & {
    readonly retryAfterMs: number
    readonly waitedMs: number
    readonly retries: number
  }
  /** A caller has waited for another that worked on the same key. */
  'dibs:once.waited': KeyOrigin & { readonly waitedMs: number; readonly retries: number }
  /** An outcome that was stored before was given again. */
  'dibs:once.replayed': KeyOrigin & { readonly attempt: number }
  /** A claim whose holder is gone was taken over; `lost` attempts have no recorded outcome so far. */
  'dibs:once.taken-over': KeyOrigin & { readonly attempt: number; readonly lost: number }
  /** A key was used again for another request. */
  'dibs:once.mismatch': KeyOrigin
  /** A claim is held back, since an attempt without a recorded outcome may have had its effect. */
  'dibs:once.ambiguous': KeyOrigin & { readonly attempt: number }
  /** Too many attempts have no recorded outcome; the claim has failed. */
  'dibs:once.gave-up': KeyOrigin & { readonly attempt: number }
  /** A holder learned that it has lost its claim: by a write that was refused, or by its own clock (`deadline`). */
  'dibs:once.lost': KeyOrigin & {
    readonly fence: number
    readonly how: 'renewal' | 'step' | 'outcome' | 'deadline'
  }
  /** The work is done, and its outcome could not be stored. */
  'dibs:once.not-stored': KeyOrigin & { readonly error: unknown }
  /** What another process has left of an operation was taken over and failed; for good, or to be tried again. */
  'dibs:operation.failed': KeyOrigin & {
    readonly operation: string
    readonly attempt: number
    readonly isFinal: boolean
    readonly error: unknown
  }
  /** A round of maintenance has ended: what it has done, by the names of its report. What it took over and monitors may be at it still, and tell by themselves. */
  'dibs:maintenance.done': EventOrigin & { readonly counts: Readonly<Record<string, number>> }
  /** A part of a round of maintenance failed; the next one comes. */
  'dibs:maintenance.failed': EventOrigin & { readonly error: unknown }
  /** Somebody else was first: a `setIfAbsent` lost, or a version was not the one that was asked for. */
  'dibs:kv.conflict': EventOrigin & {
    readonly call: 'setIfAbsent' | 'compareAndSet' | 'delete'
    /** The key without what is different in each, for a metric. */
    readonly template: string
    /** Tells keys apart without showing them. */
    readonly keyHash: string
  }
  /** A wait for rows of a table of the caller's own has ended in vain. */
  'dibs:row.locked-out': EventOrigin & {
    /** As the caller names it. */
    readonly table: string
    /** 0 if it was not to wait. */
    readonly waitedMs: number
    /** How many sessions were in the way, as far as this role may know. */
    readonly blockers: number
  }
  /** Parents were found that were not what their children say. */
  'dibs:aggregate.drifted': EventOrigin & {
    readonly aggregate: string
    readonly count: number
    readonly isRepaired: boolean
  }
  /** A parent that was marked could not be counted; it is tried again behind all others. `id`: the JSON of its key. */
  'dibs:aggregate.failed': EventOrigin & {
    readonly aggregate: string
    readonly id: string
    readonly error: unknown
  }
  /** A monitor has looked for rows that are stuck: what it found and did. */
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
  /** A monitor has put rows back, given them up, or had them handled: whoever had them is gone, or too slow. */
  'dibs:monitor.recovered': MonitorOrigin & {
    readonly requeued: number
    readonly failed: number
    readonly handled: number
  }
  /** A row that is stuck could not be changed, or its function threw; the others were done, and it comes again in the next run. */
  'dibs:monitor.row-failed': MonitorOrigin & {
    /** The key of the row. */
    readonly id: unknown
    readonly error: unknown
  }
  /** What was asked for did not fit into what is left of a quota. */
  'dibs:quota.refused': EventOrigin & {
    /** The name of the quota. */
    readonly template: string
    /** Tells subjects apart without showing them. */
    readonly keyHash: string
    readonly requested: number
    readonly remaining: number
  }
  /** Work under a lease is done, and what it has used of a quota could not be charged: others had the row for too long. */
  'dibs:acquire.unsettled': EventOrigin & { readonly quota: string; readonly id: string }
  /** Work under a lease is done, and its outcome could not be stored: the kinds of what was claimed for it. */
  'dibs:acquire.not-stored': EventOrigin & {
    readonly kinds: readonly ('once' | 'singleton' | 'quota' | 'rate' | 'lock')[]
    readonly error: unknown
  }
  /** Of several claims some were refused, and so none was made: their kinds. */
  'dibs:acquire.refused': EventOrigin & {
    readonly kinds: readonly ('once' | 'singleton' | 'quota' | 'rate' | 'lock')[]
    /** Asking again would end the same way. */
    readonly isFinal: boolean
    readonly waitedMs: number
    readonly retries: number
  }
  /** A lock is held from now on; it was waited for that long. */
  'dibs:lock.acquired': LockOrigin & {
    readonly fence: number
    readonly waitedMs: number
    readonly tries: number
  }
  /** A caller found a lock held by another, and waits. */
  'dibs:lock.contended': LockOrigin & { readonly state: 'held' | 'guarded' | 'busy' }
  /** A caller has waited for a lock in vain, or was not to wait. */
  'dibs:lock.timed-out': LockOrigin & { readonly waitedMs: number; readonly tries: number }
  /** A lock was given back after so long. */
  'dibs:lock.released': LockOrigin & { readonly fence: number; readonly heldMs: number }
  /** A lock could not be given back; its lease runs out by itself. */
  'dibs:lock.not-released': LockOrigin & { readonly fence: number; readonly error: unknown }
  /** A holder learned that it has lost its lock. */
  'dibs:lock.lost': LockOrigin & {
    readonly fence: number
    readonly reason: LossReason
    readonly heldMs: number
  }
  /** A lock was taken over from a holder that is gone, or taken away by an operator (`by`). */
  'dibs:lock.stolen': LockOrigin & {
    readonly how: 'takeover' | 'force'
    readonly fromFence: number
    /** For how long nobody had it; 0 if it was taken away. */
    readonly idleMs: number
  }
  /** A write of a holder that has lost its lock was refused: a transaction that it wanted to guard, or a row of a store elsewhere. */
  'dibs:lock.fence-rejected': LockOrigin & { readonly fence: number; readonly where: 'guard' | 'store' }
  /** This process leads from now on; `isTakeover`: the leader before has not resigned. */
  'dibs:leader.elected': EventOrigin & {
    readonly election: string
    readonly epoch: number
    readonly isTakeover: boolean
  }
  /** This process leads no more. */
  'dibs:leader.lost': EventOrigin & {
    readonly election: string
    readonly epoch: number
    readonly reason: LossReason
    readonly ledMs: number
  }
  /** A candidate could not ask, or what it does as a leader has failed; it goes on after a while. */
  'dibs:leader.failed': EventOrigin & { readonly election: string; readonly error: unknown }
  /** One caller has loaded a value for all of them; not kept if the key was forgotten meanwhile. */
  'dibs:flight.loaded': FlightOrigin & {
    readonly fence: number
    readonly loadMs: number
    /** A stale value, or one that is soon, was given to everybody meanwhile. */
    readonly isBackground: boolean
    readonly isKept: boolean
  }
  /** A load has failed. In the background nobody else hears of it, and the value that is there stays. */
  'dibs:flight.failed': FlightOrigin & {
    readonly fence: number
    readonly loadMs: number
    readonly isBackground: boolean
    readonly error: unknown
  }
  /** What came of a load that has lost its lead is not kept: another loads in its place. */
  'dibs:flight.refused': FlightOrigin & { readonly fence: number; readonly loadMs: number }
  /** What came of a load could not be published: the database could not be asked. Its own caller has it. */
  'dibs:flight.not-published': FlightOrigin & { readonly fence: number; readonly error: unknown }
  /** What is stored does not fit the `result` of a caller, and is loaded anew. */
  'dibs:flight.unfit': FlightOrigin & { readonly fence: number; readonly error: unknown }
  /** A caller has waited for the load of another. */
  'dibs:flight.waited': FlightOrigin & {
    readonly waitedMs: number
    readonly how: 'value' | 'error' | 'timed out'
  }
  /** The `waitMs` of a caller is over, or it could not reach the database (`error`). `ifBusy` says what the caller does. */
  'dibs:flight.timed-out': FlightOrigin & {
    readonly waitedMs: number
    readonly ifBusy: 'fail' | 'load' | 'serve-stale'
    readonly error: unknown
  }
  /** A rate limit refused. */
  'dibs:rate.refused': RateOrigin & { readonly cost: number; readonly retryAfterMs: number }
  /** The store of a rate limit is down, and its policy has answered in its place. */
  'dibs:rate.degraded': RateOrigin & { readonly policy: 'allow' | 'local'; readonly error: unknown }
  /** The idempotency middleware has answered with a status of 500 or more in place of a handler: the name of the problem. */
  'dibs:http.failed': EventOrigin & {
    readonly problem: string
    readonly method: string
    /** Without what it asks for. */
    readonly path: string
    readonly error: unknown
  }
  /** A worker takes jobs from now on. */
  'dibs:worker.started': EventOrigin & { readonly worker: string; readonly lanes: number }
  /** A worker takes no more jobs, and has given back what it had. */
  'dibs:worker.stopped': EventOrigin & { readonly worker: string }
  /** A statement of the workers of this instance could not be sent, or has failed; it is tried again. */
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
  /** The database was away five times in a row: nobody claims jobs for 30 seconds. */
  'dibs:worker.breaker-opened': EventOrigin & { readonly error: unknown }
  /** The database is there again. */
  'dibs:worker.breaker-closed': EventOrigin
  /** A job was done, and that is recorded. */
  'dibs:job.succeeded': JobOrigin
  /** A handler has failed: for good, or the job is tried again after `retryInMs`. */
  'dibs:job.failed': JobOrigin & {
    readonly isFinal: boolean
    /** It has asked for more time, and that is no failure. */
    readonly isSnoozed: boolean
    readonly retryInMs: number
    readonly error: unknown
  }
  /** No transaction could be begun for a handler, so it has not run. The job is released for `retryInMs`, and the attempt does not count. */
  'dibs:job.not-started': JobOrigin & { readonly retryInMs: number; readonly error: unknown }
  /** Somebody has given up a job that a worker had, and its end is recorded. Of one that waited nothing is told: whoever cancels it knows. */
  'dibs:job.canceled': JobOrigin
  /** A worker has lost a job while its handler ran: another has it, or may have it. */
  'dibs:job.lost': JobOrigin & { readonly fence: number; readonly reason: 'stolen' | 'lost contact' }
  /** A handler was done too late: another has the job, or has had it. Nothing was changed. */
  'dibs:job.refused': JobOrigin & { readonly fence: number }
  /** A handler that was told to stop goes on; its slot was given to another job. */
  'dibs:job.stuck': JobOrigin
  /** The end of an attempt could not be recorded: the server would not have it. Its lease runs out by itself. */
  'dibs:job.not-recorded': JobOrigin & { readonly fence: number; readonly error: unknown }
  /** A job was taken from a worker that is gone, and is ready again, dead after its last attempt, or was canceled before. */
  'dibs:job.recovered': JobOrigin & {
    readonly queue: string
    readonly worker: string
    readonly fence: number
    readonly state: 'ready' | 'dead' | 'canceled'
  }
  /** A job could not be claimed, and is set aside as dead; or not even that could be done, and it is passed over. */
  'dibs:job.quarantined': EventOrigin & { readonly id: string; readonly isSetAside: boolean }
  /** What a handler has to say (`ctx.log`). */
  'dibs:job.logged': JobOrigin & {
    readonly level: 'debug' | 'info' | 'warn' | 'error'
    readonly message: string
    readonly fields: object | undefined
  }
  /** A wake-up hint could not be sent; those who wait find out by polling. */
  'dibs:wakeup.failed': EventOrigin & { readonly error: unknown }
}

let instances = 0

/** Names a new instance. */
export function newOrigin(schema: string): EventOrigin {
  return Object.freeze({ schema, instance: ++instances })
}

export type DibsEventName = keyof DibsEvents

/** Events about one claim. */
export type ClaimEventName = Extract<DibsEventName, `dibs:once.${string}` | `dibs:operation.${string}`>

/** Publishes an event; costs one check when nobody listens. */
export function emit<N extends DibsEventName>(name: N, payload: DibsEvents[N]): void {
  const target = channel(name)
  if (target.hasSubscribers) target.publish(payload)
}

/** Somebody listens: for events that cost something to describe. */
export const isHeard = (name: DibsEventName): boolean => channel(name).hasSubscribers

/** Calls `listener` for each event of one kind in this process, without checks; returns a function that stops it. */
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
