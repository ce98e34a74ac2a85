/** Something that steps conflict on: rows of a table, or entries of one of its unique indexes. */
export interface Resource {
  /** The name without a schema. Two tables with one name count as one table, which only makes more steps dependent. */
  readonly table: string
  /** `ROWS` for the rows themselves, by primary key. Otherwise the name of another unique index. */
  readonly index: string
  /** The keys, as strings that are equal if PostgreSQL finds the values equal; undefined if they can be any. */
  readonly keys?: ReadonlySet<string> | undefined
  /** The schema of the table; undefined if it is not known. */
  readonly schema?: string | undefined
}

export const ROWS = ''

/** Stands in the place of a table for advisory locks. */
export const ADVISORY = 'advisory locks'

/** The strengths of row locks. Two locks conflict if their strengths add up to 3 or more. */
export const KEY_SHARE = 0
export const SHARE = 1
export const NO_KEY_UPDATE = 2
export const UPDATE = 3

/** A lock that one transaction can hold while another waits for it. */
export interface Lock {
  readonly resource: Resource
  readonly strength: number
  /** True if only an existing row can be locked. False for an INSERT, which locks its key whether or not a row has it. */
  readonly isOfExistingRow: boolean
}

/** An upper bound of what a step reads, locks and writes, from its text and the catalog. */
export interface Footprint {
  /** The statements without their parameters, since these may differ from schedule to schedule. */
  readonly text?: string | undefined
  /** Why the footprint is unbounded: the step may read, lock and write anything. */
  readonly unboundedBecause?: string | undefined
  /** Rows that the step reads from its snapshot, without a lock. */
  readonly reads: readonly Resource[]
  readonly locks: readonly Lock[]
  /** Resources that the step tries to lock without a wait: NOWAIT, SKIP LOCKED, pg_try_advisory_lock. */
  readonly lockProbes: readonly Resource[]
  /** Rows that exist only after the COMMIT of the step. */
  readonly inserts: readonly Resource[]
  /** Rows that the COMMIT of the step changes or deletes. */
  readonly changes: readonly Resource[]
  /** Sequences from which the step draws numbers. */
  readonly sequences: ReadonlySet<string>
  /** Tables to which the step adds a row version. */
  readonly versionTables: ReadonlySet<string>
  /** Tables on whose physical order of rows the result depends. */
  readonly orderSensitiveTables: ReadonlySet<string>
  /** Tables on whose physical order of rows the result depends if it has more than one row. */
  readonly unorderedResultTables: ReadonlySet<string>
  /** Tables into which the step writes the time, or the id of its transaction. */
  readonly timestampedTables: ReadonlySet<string>
  /** Tables from which the step reads times, which show what came first. */
  readonly timeReadTables: ReadonlySet<string>
  /** True if the step reads the clock. */
  readonly readsClock?: boolean | undefined
  /** True if the step returns the time to the client, which may write it anywhere. */
  readonly returnsClock?: boolean | undefined
  /** Tables that the step names. */
  readonly tables: ReadonlySet<string>
  /** Rows that the step locks by key under a further condition. Rows that do not meet the condition cause no wait. */
  readonly conditionalRows: readonly Resource[]
  /** Locks that the step certainly gets if the server counts as many rows as the lock has keys. */
  readonly locksIfCounted: readonly Lock[]
  /** True if the step does not take the snapshot of its transaction at REPEATABLE READ. */
  readonly precedesSnapshot?: boolean | undefined
  /** Rows that the step reads but does not lock, in a statement that locks others. These reads come before the locks. */
  readonly unlockedReads: readonly Resource[]
  /** How the step ends its transaction; `savepoint` for ROLLBACK TO SAVEPOINT. */
  readonly ends?: 'commit' | 'rollback' | 'savepoint' | undefined
}

const NOTHING: ReadonlySet<string> = new Set()

export const EMPTY: Footprint = Object.freeze({
  reads: [],
  locks: [],
  lockProbes: [],
  inserts: [],
  changes: [],
  sequences: NOTHING,
  versionTables: NOTHING,
  orderSensitiveTables: NOTHING,
  unorderedResultTables: NOTHING,
  timestampedTables: NOTHING,
  timeReadTables: NOTHING,
  tables: NOTHING,
  conditionalRows: [],
  locksIfCounted: [],
  unlockedReads: [],
})

export const unbounded = (why: string): Footprint => ({ ...EMPTY, unboundedBecause: why })

export function intersects(some: ReadonlySet<string>, others: ReadonlySet<string>): boolean {
  for (const one of some) if (others.has(one)) return true
  return false
}

function overlaps(a: Resource, b: Resource): boolean {
  if (a.table !== b.table || a.index !== b.index) return false
  return !a.keys || !b.keys || intersects(a.keys, b.keys)
}

export const overlapAny = (some: readonly Resource[], others: readonly Resource[]): boolean =>
  some.some((a) => others.some((b) => overlaps(a, b)))

export const conflict = (a: Lock, b: Lock): boolean =>
  a.strength + b.strength >= 3 && overlaps(a.resource, b.resource)

export const conflictAny = (some: readonly Lock[], others: readonly Lock[]): boolean =>
  some.some((a) => others.some((b) => conflict(a, b)))

const unite = (some: ReadonlySet<string>, others: ReadonlySet<string>): ReadonlySet<string> =>
  others.size === 0 ? some : some.size === 0 ? others : new Set([...some, ...others])

/** The footprint of two steps together. */
export function join(a: Footprint, b: Footprint): Footprint {
  if (a === EMPTY) return b
  if (b === EMPTY) return a
  return {
    unboundedBecause: a.unboundedBecause ?? b.unboundedBecause,
    reads: [...a.reads, ...b.reads],
    locks: [...a.locks, ...b.locks],
    lockProbes: [...a.lockProbes, ...b.lockProbes],
    inserts: [...a.inserts, ...b.inserts],
    changes: [...a.changes, ...b.changes],
    sequences: unite(a.sequences, b.sequences),
    versionTables: unite(a.versionTables, b.versionTables),
    orderSensitiveTables: unite(a.orderSensitiveTables, b.orderSensitiveTables),
    unorderedResultTables: unite(a.unorderedResultTables, b.unorderedResultTables),
    timestampedTables: unite(a.timestampedTables, b.timestampedTables),
    timeReadTables: unite(a.timeReadTables, b.timeReadTables),
    readsClock: a.readsClock || b.readsClock,
    returnsClock: a.returnsClock || b.returnsClock,
    tables: unite(a.tables, b.tables),
    conditionalRows: [...a.conditionalRows, ...b.conditionalRows],
    locksIfCounted: [...a.locksIfCounted, ...b.locksIfCounted],
    precedesSnapshot: a.precedesSnapshot && b.precedesSnapshot,
    unlockedReads: [...a.unlockedReads, ...b.unlockedReads],
    ends: b.ends ?? a.ends,
  }
}
