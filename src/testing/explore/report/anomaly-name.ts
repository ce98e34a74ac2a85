/** What a race is called in the literature. */
export interface Anomaly {
  readonly name: AnomalyName
  /** Who, in which steps, on which rows. */
  readonly explanation: string
}

export type AnomalyName =
  | 'deadlock'
  | 'dirty lock release'
  | 'duplicate claim'
  | 'lost update'
  | 'phantom'
  | 'write skew'
  | 'read skew'
