import { NotAwaitedError } from '../errors.js'

/** A call that joined a transaction and has not settled yet. */
interface OpenCall {
  readonly name: string
  promise?: Promise<unknown>
}

/** The name of a statement that belongs to another call, or to one that does not name itself. */
export const STATEMENT = 'a statement of Dibs'

/** Every call that counts as open until it settles, so that a test can try each of them. */
export const trackedNames = new Set(['tx.query', 'tx.savepoint'])

/** By what the call was given as `tx`. */
const openCalls = new WeakMap<object, Set<OpenCall>>()

/**
 * Runs a call that joins the transaction `tx`, if one is given. Until the call has settled, `dibs.transaction` refuses to
 * COMMIT: a call that nobody awaits would be cut off in the middle, and a part of it would be kept.
 */
export function joinedCall<T>(tx: unknown, name: string, run: () => Promise<T>): Promise<T> {
  if (typeof tx !== 'object' || tx === null) return run()
  const calls = openCalls.get(tx) ?? new Set<OpenCall>()
  openCalls.set(tx, calls)
  const call: OpenCall = { name }
  calls.add(call)
  const promise = settle(run, () => calls.delete(call))
  call.promise = promise
  return promise
}

/** `onEnd` runs before anybody who awaits the call goes on. */
async function settle<T>(run: () => Promise<T>, onEnd: () => void): Promise<T> {
  try {
    return await run()
  } finally {
    onEnd()
  }
}

/** Throws if a call that joined one of these transactions is still open. The error names the calls. */
export function assertAllAwaited(part: 'transaction' | 'savepoint', transactions: readonly object[]): void {
  const calls = ignoreOpenCalls(transactions)
  if (calls.length === 0) return
  const named = calls.map(({ name }) => name).filter((name) => name !== STATEMENT)
  throw new NotAwaitedError(part, named.length > 0 ? named : [STATEMENT])
}

/**
 * The rejections of the calls that are still open count as handled from here on. For a transaction that fails: its error is
 * reported, the calls fail because of it, and a rejection that nobody handles would end the process.
 */
export function ignoreOpenCalls(transactions: readonly object[]): readonly OpenCall[] {
  const calls = transactions.flatMap((tx) => [...(openCalls.get(tx) ?? [])])
  for (const { promise } of calls) promise?.catch(() => {})
  return calls
}

/**
 * Wraps a function so that each call counts as open until it settles. The argument at `place` holds `tx`, or is the transaction
 * itself.
 */
export function trackJoined<F extends (...given: never[]) => Promise<unknown>>(
  name: string,
  place: number,
  call: F,
): F {
  trackedNames.add(name)
  const tracked = (...given: never[]): Promise<unknown> =>
    joinedCall(txOf(given[place]), name, () => call(...given))
  // With all its overloads, which cannot be written for a function that wraps any other.
  return tracked as F
}

/** Wraps methods of a class in the same way. `places` has the place of the argument for each method. */
export function trackJoinedMethods<C extends object>(
  type: { readonly prototype: C },
  prefix: string,
  places: Readonly<Partial<Record<keyof C & string, number>>>,
): void {
  for (const [name, place] of Object.entries<number | undefined>(places)) {
    const method: unknown = Reflect.get(type.prototype, name)
    if (typeof method !== 'function' || place === undefined)
      throw new TypeError(`${prefix} has no method ${name}.`)
    trackedNames.add(`${prefix}.${name}`)
    Object.defineProperty(type.prototype, name, {
      configurable: true,
      writable: true,
      value(this: C, ...given: unknown[]): Promise<unknown> {
        return joinedCall(txOf(given[place]), `${prefix}.${name}`, () => method.apply(this, given))
      },
    })
  }
}

/** The transaction in an options object, or the argument itself where that is a transaction. */
function txOf(given: unknown): unknown {
  if (typeof given !== 'object' || given === null) return undefined
  return 'query' in given ? given : Reflect.get(given, 'tx')
}
