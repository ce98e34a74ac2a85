import type { Kv } from '../src/claims/kv/kv.js'
import type { Dibs } from '../src/dibs.js'
import type { Tx } from '../src/postgres/executor.js'
import type { Isolation } from '../src/postgres/transaction-types.js'

/** The state of the key: its value, and whether the version is the one that each schedule starts with. */
export interface KvState {
  readonly value: KvFields | undefined
  readonly isFirst: boolean
}
export type KvFields = { readonly by: string; readonly checks: Readonly<Record<string, string>> }

/** A call, and what it would do and answer if it were alone. */
export interface KvCall {
  run(kv: Kv, first: number, options?: { readonly tx: Tx }): Promise<unknown>
  expect(state: KvState): readonly [answer: unknown, state: KvState]
}

export const KEY = 'order:7'
const absent: KvState = { value: undefined, isFirst: false }
const written = (value: KvFields): KvState => ({ value, isFirst: false })
const fieldsOf = (by: string): KvFields => ({ by, checks: {} })

export const claim = (by: string): KvCall => ({
  async run(kv, _, options) {
    const told = await kv.setIfAbsent(KEY, fieldsOf(by), options)
    return told.ok ? 'claimed' : told.current.value
  },
  expect: (state) => (state.value ? [state.value, state] : ['claimed', written(fieldsOf(by))]),
})

export const put = (by: string): KvCall => ({
  run: async (kv, _, options) => void (await kv.set(KEY, fieldsOf(by), options)),
  expect: () => [undefined, written(fieldsOf(by))],
})

/** From the version that the schedule starts with. */
export const swap = (by: string): KvCall => ({
  async run(kv, first, options) {
    const told = await kv.compareAndSet(KEY, first, fieldsOf(by), options)
    return told.ok ? 'set' : told.current?.value
  },
  expect: (state) => (state.isFirst ? ['set', written(fieldsOf(by))] : [state.value, state]),
})

export const drop: KvCall = {
  run: async (kv, _, options) => (await kv.delete(KEY, options)).ok,
  expect: (state) => [state.value !== undefined, absent],
}

export const dropFirst: KvCall = {
  async run(kv, first, options) {
    const told = await kv.delete<KvFields>(KEY, { ...options, ifVersion: first })
    return told.ok ? 'deleted' : told.current?.value
  },
  expect: (state) => (state.isFirst ? ['deleted', absent] : [state.value, state]),
}

export const patch = (name: string): KvCall => ({
  run: async (kv, _, options) => (await kv.patch(KEY, { checks: { [name]: 'ok' } }, options))?.value,
  expect({ value }) {
    if (!value) return [undefined, absent]
    const patched = { ...value, checks: { ...value.checks, [name]: 'ok' } }
    return [patched, written(patched)]
  },
})

export const read: KvCall = {
  run: async (kv, _, options) => (await kv.get(KEY, options))?.value,
  expect: (state) => [state.value, state],
}

/** Deletes it and makes it again in one transaction: for everybody else it is never away. */
export const remake = (dibs: Dibs, by: string): KvCall => ({
  run: (kv, first) =>
    dibs.transaction(async (tx) => {
      await drop.run(kv, first, { tx })
      return claim(by).run(kv, first, { tx })
    }),
  expect: () => ['claimed', written(fieldsOf(by))],
})

/** The call in a transaction, which begins with a read. */
export const joined = (dibs: Dibs, call: KvCall, isolation: Isolation): KvCall => ({
  ...call,
  run: (kv, first) =>
    dibs.transaction(
      async (tx) => {
        await read.run(kv, first, { tx })
        return call.run(kv, first, { tx })
      },
      { isolation },
    ),
})

/** Some order of these calls, one after the other, in which each answers what it did answer, and leaves what is left. */
export function isExplained(
  calls: readonly { readonly call: KvCall; readonly answer: unknown }[],
  state: KvState,
  left: unknown,
): boolean {
  if (calls.length === 0) return same(state.value, left)
  return calls.some(({ call, answer }, n) => {
    const [expected, next] = call.expect(state)
    return same(expected, answer) && isExplained(calls.toSpliced(n, 1), next, left)
  })
}

const same = (a: unknown, b: unknown): boolean => canonical(a) === canonical(b)

/** jsonb does not keep the order of keys. */
function canonical(value: unknown): string | undefined {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  return JSON.stringify(
    Object.entries(value)
      .map(([key, inner]) => [key, canonical(inner)])
      .sort(),
  )
}
