/** A race by its name in the literature. */
export interface Anomaly {
  readonly name: AnomalyName
  /** Which actors raced, in which steps, on which rows. */
  readonly explanation: string
}

type AnomalyName =
  | 'deadlock'
  | 'dirty lock release'
  | 'duplicate claim'
  | 'lost update'
  | 'phantom'
  | 'write skew'
  | 'read skew'
