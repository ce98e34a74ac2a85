/** The direction of the bytes that a fault affects. Default `both`. */
export type Direction = 'toServer' | 'toClient' | 'both'

/** Delays all bytes by `delayMs`, plus or minus a random part of `jitterMs`. The order stays. */
export interface LatencyFault {
  readonly kind: 'latency'
  readonly delayMs: number
  /** Chosen anew whenever the other side has sent something. Values above `delayMs` have no further effect. */
  readonly jitterMs?: number | undefined
  readonly direction?: Direction | undefined
}

/** Limits the bandwidth of each connection in each direction. */
export interface BandwidthFault {
  readonly kind: 'bandwidth'
  readonly bytesPerSecond: number
  readonly direction?: Direction | undefined
}

/**
 * Passes nothing on, and closes nothing, even if one side closes its end. New connections hang. Bytes that were sent meanwhile arrive when the fault ends, as
 * after a network partition.
 */
export interface BlackHoleFault {
  readonly kind: 'black-hole'
  readonly direction?: Direction | undefined
}

/** Resets new connections at once. The proxy keeps its port and its open connections. */
export interface RefuseFault {
  readonly kind: 'refuse'
}

/** Resets all open connections on both sides. */
export interface ResetFault {
  readonly kind: 'reset'
}

/** Cuts the connection that sends a chosen statement. */
export interface CutFault {
  readonly kind: 'cut'
  /**
   * `before`: nothing of the request reaches the server. `after`: the server has executed it and is ready again. Nothing of its response reaches the
   * client, except what the client needs to go on (Flush, the start of a COPY).
   */
  readonly when: 'before' | 'after'
  /** A part of the SQL, or `/a regular expression/`. Case does not matter. Default: any statement. */
  readonly statement?: string | undefined
  /** Cuts from the nth matching statement on, counted over all connections from now on. Default 1. */
  readonly nth?: number | undefined
  /** How many matching statements are cut, from the `nth` on. Default 1. */
  readonly times?: number | 'always' | undefined
  /**
   * How the connection ends for the client: `reset` (default), `close` (an orderly end), `black-hole` (silence until the
   * fault ends) or `panic` (the last message of a crashing server).
   */
  readonly how?: 'reset' | 'close' | 'black-hole' | 'panic' | undefined
  /**
   * The severity that a `panic` shows. A server translates this word according to `lc_messages`, so a driver must not compare it. The field that is never
   * translated is PANIC.
   */
  readonly severity?: string | undefined
}

/** Ends all other faults. */
export interface HealFault {
  readonly kind: 'heal'
}

/** A fault that a `PgProxy` can inject. Faults are plain data, so that a script of them can be stored as JSON. */
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

/** When a fault took effect, and on which connection. */
export interface Strike {
  /** Milliseconds since the proxy was started. */
  readonly atMs: number
  /** For a cut: the number of the connection. */
  readonly connection?: number | undefined
  /** For a cut: the SQL of the request. */
  readonly statement?: string | undefined
}

/** A fault that was injected. */
export interface Injection {
  readonly fault: Fault
  /** The first strike: of a cut when it has cut a statement, of other faults at once. Undefined if the fault ended before. */
  readonly happened: Promise<Strike | undefined>
  /** How often the fault took effect. */
  readonly strikes: number
  /** Ends the fault. Connections that it has cut stay cut. */
  end(): void
}
