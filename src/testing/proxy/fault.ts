/** The way of the bytes that a fault concerns; `both` where none is named. */
export type Direction = 'toServer' | 'toClient' | 'both'

/** Everything arrives late by `delayMs`, plus or minus a random `jitterMs`. The order stays. */
export interface LatencyFault {
  readonly kind: 'latency'
  readonly delayMs: number
  /** Drawn again whenever the other side has spoken. Nothing arrives before it was sent, so more than `delayMs` has no effect. */
  readonly jitterMs?: number | undefined
  readonly direction?: Direction | undefined
}

/** No more than so many bytes a second, on each connection and in each direction for itself. */
export interface BandwidthFault {
  readonly kind: 'bandwidth'
  readonly bytesPerSecond: number
  readonly direction?: Direction | undefined
}

/**
 * Nothing is handed on and nothing is closed, not even what one side closes itself; new connections hang. What was
 * sent meanwhile arrives when it ends, as it does after a partition.
 */
export interface BlackHoleFault {
  readonly kind: 'black-hole'
  readonly direction?: Direction | undefined
}

/** New connections are accepted and reset at once, so that the port stays ours; those that are open stay. */
export interface RefuseFault {
  readonly kind: 'refuse'
}

/** All open connections are reset now, on both sides. */
export interface ResetFault {
  readonly kind: 'reset'
}

/** The connection that sends a chosen statement is lost around it. */
export interface CutFault {
  readonly kind: 'cut'
  /**
   * `before`: nothing of the request reaches the server. `after`: the server has executed it and is ready again, and
   * nothing of its answer reaches the client, save what it had to see in order to go on (Flush, the start of a COPY).
   */
  readonly when: 'before' | 'after'
  /** A part of its text, or `/a regular expression/`; upper and lower case alike. Any statement where none is given. */
  readonly statement?: string | undefined
  /** The first that fits, or the second …, counted over all connections from now on. */
  readonly nth?: number | undefined
  /** How many that fit are cut, from the `nth` on: 1 where nothing is said. */
  readonly times?: number | 'always' | undefined
  /**
   * What the client sees: a reset, an orderly end, silence until the fault is ended, or the last words of a dying server
   * and the end.
   */
  readonly how?: 'reset' | 'close' | 'black-hole' | 'panic' | undefined
  /**
   * How a `panic` spells its severity. A server spells it in the language of its `lc_messages`, so a driver that
   * compares the word is wrong; the field that is never translated says PANIC.
   */
  readonly severity?: string | undefined
}

/** Ends everything that was injected. */
export interface HealFault {
  readonly kind: 'heal'
}

/** What a `PgProxy` can do to its connections. Plain data, so that a script of them can be kept as JSON. */
export type Fault =
  | LatencyFault
  | BandwidthFault
  | BlackHoleFault
  | RefuseFault
  | ResetFault
  | CutFault
  | HealFault

/** A fault with its time, counted from the start of the script. */
export type ScriptedFault = Fault & { readonly atMs: number }

/** Where and when a fault struck. */
export interface Strike {
  /** Since the proxy was started. */
  readonly atMs: number
  /** For a cut: which connection, and what it had sent. */
  readonly connection?: number | undefined
  readonly statement?: string | undefined
}

/** A fault in force. */
export interface Injection {
  readonly fault: Fault
  /** The first strike: of a cut when a statement was cut, of others at once. Undefined if it was ended before. */
  readonly happened: Promise<Strike | undefined>
  /** How often it has struck. */
  readonly strikes: number
  /** Takes it back; what it has broken stays broken. */
  end(): void
}
