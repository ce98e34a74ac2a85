/** Rows of a table, or entries of one of its unique indexes. */
export interface Place {
  /** Its name without a schema: two tables of one name are taken for one, which errs on the safe side. */
  readonly table: string
  /** `ROWS`: the rows themselves, by primary key. Else the name of another unique index. */
  readonly index: string
  /** Keys, as text that is equal where PostgreSQL says equal; none given: any. */
  readonly keys?: ReadonlySet<string> | undefined
  /** Where the table is; undefined: not known for sure. */
  readonly schema?: string | undefined
}

export const ROWS = ''

/** Stands for a table: what advisory locks lock. */
export const ADVISORY = 'advisory locks'

/** Strength of a row lock, so that two conflict if they add up to 3 or more. */
export const KEY_SHARE = 0
export const SHARE = 1
export const NO_KEY_UPDATE = 2
export const UPDATE = 3

/** Something that one transaction can hold and another waits for. */
export interface Lock {
  readonly place: Place
  readonly strength: number
  /** It looks for a row that is there; an INSERT claims a key whether or not there is one. */
  readonly seeks: boolean
}

/** What a step reads, locks and leaves for others to see, as far as its text and the catalog tell. */
export interface Footprint {
  /** The statements, without their parameters, which may be others in each schedule. */
  readonly text?: string | undefined
  /** Why it must be taken to touch everything. */
  readonly everything?: string | undefined
  /** What it sees as of its snapshot, without a lock. */
  readonly reads: readonly Place[]
  readonly locks: readonly Lock[]
  /** Where it looks whether a lock is free and does not wait: NOWAIT, SKIP LOCKED, pg_try_advisory_lock. */
  readonly tries: readonly Place[]
  /** Rows that will be there after COMMIT and were not before. */
  readonly adds: readonly Place[]
  /** Rows that are others, or gone, after COMMIT. */
  readonly changes: readonly Place[]
  /** Sequences it takes numbers from. */
  readonly draws: ReadonlySet<string>
  /** Tables in which it puts a row version somewhere. */
  readonly puts: ReadonlySet<string>
  /** Tables of which it picks rows by the order in which they happen to lie there. */
  readonly disordered: ReadonlySet<string>
  /** The same, if it returns more than one row. */
  readonly shows: ReadonlySet<string>
  /** Tables into which it writes what time it is, or which transaction. */
  readonly stamps: ReadonlySet<string>
  /** Tables in which it looks at times: who came first had the earlier one. */
  readonly timed: ReadonlySet<string>
  /** It asks what time it is. */
  readonly asksForTime?: boolean | undefined
  /** And tells the client, who may write it wherever. */
  readonly tellsTime?: boolean | undefined
  /** Tables it names. */
  readonly touches: ReadonlySet<string>
  /** Rows locked by key under a further condition: those that do not meet it are not waited for. */
  readonly conditional: readonly Place[]
  /** Locks that it has for sure, if the server counts as many rows as there are keys. */
  readonly holds: readonly Lock[]
  /** At REPEATABLE READ the snapshot is still to come. */
  readonly isEarly?: boolean | undefined
  /** What it reads beside the rows that it locks, as of before it has its locks. */
  readonly aside: readonly Place[]
  /** What it ends: a transaction, or what was done since a savepoint. */
  readonly ends?: 'commit' | 'rollback' | 'savepoint' | undefined
}

const NOTHING: ReadonlySet<string> = new Set()

export const EMPTY: Footprint = Object.freeze({
  reads: [],
  locks: [],
  tries: [],
  adds: [],
  changes: [],
  draws: NOTHING,
  puts: NOTHING,
  disordered: NOTHING,
  shows: NOTHING,
  stamps: NOTHING,
  timed: NOTHING,
  touches: NOTHING,
  conditional: [],
  holds: [],
  aside: [],
})

export const everything = (why: string): Footprint => ({ ...EMPTY, everything: why })

export function shares(some: ReadonlySet<string>, others: ReadonlySet<string>): boolean {
  for (const one of some) if (others.has(one)) return true
  return false
}

export function meets(a: Place, b: Place): boolean {
  if (a.table !== b.table || a.index !== b.index) return false
  return !a.keys || !b.keys || shares(a.keys, b.keys)
}

export const meetAny = (some: readonly Place[], others: readonly Place[]): boolean =>
  some.some((a) => others.some((b) => meets(a, b)))

export const conflict = (a: Lock, b: Lock): boolean => a.strength + b.strength >= 3 && meets(a.place, b.place)

export const conflictAny = (some: readonly Lock[], others: readonly Lock[]): boolean =>
  some.some((a) => others.some((b) => conflict(a, b)))

const unite = (some: ReadonlySet<string>, others: ReadonlySet<string>): ReadonlySet<string> =>
  others.size === 0 ? some : some.size === 0 ? others : new Set([...some, ...others])

/** Both, one after the other. */
export function join(a: Footprint, b: Footprint): Footprint {
  if (a === EMPTY) return b
  if (b === EMPTY) return a
  return {
    everything: a.everything ?? b.everything,
    reads: [...a.reads, ...b.reads],
    locks: [...a.locks, ...b.locks],
    tries: [...a.tries, ...b.tries],
    adds: [...a.adds, ...b.adds],
    changes: [...a.changes, ...b.changes],
    draws: unite(a.draws, b.draws),
    puts: unite(a.puts, b.puts),
    disordered: unite(a.disordered, b.disordered),
    shows: unite(a.shows, b.shows),
    stamps: unite(a.stamps, b.stamps),
    timed: unite(a.timed, b.timed),
    asksForTime: a.asksForTime || b.asksForTime,
    tellsTime: a.tellsTime || b.tellsTime,
    touches: unite(a.touches, b.touches),
    conditional: [...a.conditional, ...b.conditional],
    holds: [...a.holds, ...b.holds],
    isEarly: a.isEarly && b.isEarly,
    aside: [...a.aside, ...b.aside],
    ends: b.ends ?? a.ends,
  }
}
