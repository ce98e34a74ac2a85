import { NotAwaitedError } from '../errors.js'

/** A call that joined a transaction and has not settled yet. */
interface OpenCall {
  readonly name: string
  promise?: Promise<unknown>
}

/** The name of a statement that belongs to another call, or to a call without a name. */
export const STATEMENT = 'a statement of Dibs'

/** Every call that counts as open until it settles, so that a test can try each of them. */
export const trackedNames = new Set(['tx.query', 'tx.savepoint'])

/** The open calls of each `tx` argument. */
const openCalls = new WeakMap<object, Set<OpenCall>>()

/**
 * Runs a call that joins the transaction `tx`, if there is one. Until the call has settled, `dibs.transaction` refuses
 * COMMIT: it would cut off a call that was not awaited in the middle, and keep a part of it.
 */
export function trackCall<T>(tx: unknown, name: string, run: () => Promise<T>): Promise<T> {
  if (typeof tx !== 'object' || tx === null) return run()
  const calls = openCalls.get(tx) ?? new Set<OpenCall>()
  openCalls.set(tx, calls)
  const call: OpenCall = { name }
  calls.add(call)
  const promise = settle(run, () => calls.delete(call))
  call.promise = promise
  return promise
}

/** `onEnd` runs before any caller that awaits the call goes on. */
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
 * Marks the rejections of all calls that are still open as handled. For a transaction that fails: its caller gets its
 * error, and the calls fail because of it. An unhandled rejection would end the process.
 */
export function ignoreOpenCalls(transactions: readonly object[]): readonly OpenCall[] {
  const calls = transactions.flatMap((tx) => [...(openCalls.get(tx) ?? [])])
  for (const { promise } of calls) promise?.catch(() => {})
  return calls
}

/**
 * Wraps a function so that each call counts as open until it settles. The argument at `place` holds `tx`, or is the
 * transaction.
 */
export function trackJoined<F extends (...args: never[]) => Promise<unknown>>(
  name: string,
  place: number,
  call: F,
): F {
  trackedNames.add(name)
  const tracked = (...args: never[]): Promise<unknown> =>
    trackCall(txOf(args[place]), name, () => call(...args))
  // The cast keeps all overloads, which cannot be written for a function that wraps any other.
  return tracked as F
}

/** Wraps methods of a class in the same way. `places` has the position of that argument for each method. */
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
      value(this: C, ...args: unknown[]): Promise<unknown> {
        return trackCall(txOf(args[place]), `${prefix}.${name}`, () => method.apply(this, args))
      },
    })
  }
}

/** The transaction in an options object, or the argument itself where that is a transaction. */
function txOf(args: unknown): unknown {
  if (typeof args !== 'object' || args === null) return undefined
  return 'query' in args ? args : Reflect.get(args, 'tx')
}
