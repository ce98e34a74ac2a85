import { syncBuiltinESMExports } from 'node:module'
import timers from 'node:timers/promises'
import pg from 'pg'
import { afterAll, afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { withPool } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { openDatabase } from '../../test/open-database.js'
import {
  CommitOutcomeUnknownError,
  ConflictError,
  NestedRetryError,
  StatementTimeoutError,
} from '../errors.js'
import { onEvent } from './events.js'
import { type RetryContext, type RetryOnConflictOptions, retryOnConflict } from './retry-on-conflict.js'

/** How long each pause was, and what a test does in place of a pause. */
const waits = {
  ms: [] as number[],
  instead: undefined as ((signal?: AbortSignal) => void) | undefined,
}

const { setTimeout: pause } = timers

function replacePause(by: typeof pause): void {
  timers.setTimeout = by
  syncBuiltinESMExports()
}

replacePause(async <T>(ms = 0, value?: T, options: { signal?: AbortSignal } = {}) => {
  waits.ms.push(ms)
  if (waits.instead) waits.instead(options.signal)
  else await pause(ms, undefined, options)
  return value as T
})
afterAll(() => replacePause(pause))

beforeEach(() => {
  waits.ms = []
  waits.instead = undefined
})
afterEach(() => vi.restoreAllMocks())

const conflict = (details = {}) => new ConflictError({ subject: 'doc 1', ...details })

/** Fails with each of these in turn, then succeeds; what it was given. */
function failing(...errors: unknown[]) {
  const seen: RetryContext[] = []
  const fn = async (context: RetryContext): Promise<string> => {
    seen.push(context)
    if (errors.length > 0) throw errors.shift()
    return 'done'
  }
  return { fn, seen, attempts: () => seen.map(({ attempt }) => attempt) }
}

const serverError = (code: string) =>
  Object.assign(new pg.DatabaseError('no', 2, 'error'), { code, severity: 'ERROR' })

describe('what is repeated', () => {
  it.each([
    ['a conflict of ours', conflict()],
    ['40001', serverError('40001')],
    ['40P01 as a library wraps it', new Error('Failed query', { cause: serverError('40P01') })],
  ])('%s', async (_, error) => {
    const { fn, attempts } = failing(error, error)
    expect(await retryOnConflict(fn)).toBe('done')
    expect(attempts()).toEqual([1, 2, 3])
  })

  it.each([
    ['a lost answer to COMMIT', new CommitOutcomeUnknownError('COMMIT', { cause: conflict() })],
    ['a server that does not know', serverError('40003')],
    ['a unique violation', serverError('23505')],
    ['a mistake', new TypeError('a bug')],
  ])('not %s', async (_, error) => {
    const { fn, attempts } = failing(error)
    await expect(retryOnConflict(fn)).rejects.toBe(error)
    expect(attempts()).toEqual([1])
  })

  it('not what is thrown before anything is awaited, unless it is a conflict', async () => {
    let runs = 0
    const value = await retryOnConflict((() => {
      if (++runs === 1) throw conflict()
      return 'done'
    }) as never)
    expect([value, runs]).toEqual(['done', 2])
  })
})

describe('its bounds', () => {
  it('waits between nothing and a step that doubles from 5 ms to 1 s, ten attempts in all', async () => {
    waits.instead = () => {}
    vi.spyOn(Math, 'random').mockReturnValue(0.5)
    const cause = conflict({ expected: 3, current: 4 })
    const { fn, attempts } = failing(...Array(20).fill(cause))
    const error = await retryOnConflict(fn).catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(ConflictError)
    expect(error).toMatchObject({ attempts: 10, expected: 3, current: 4, cause })
    expect(attempts()).toHaveLength(10)
    expect(waits.ms).toEqual([2.5, 5, 10, 20, 40, 80, 160, 320, 500])
  })

  it('gives up after as many attempts as it was told, with the last conflict', async () => {
    const last = serverError('40001')
    const { fn } = failing(conflict(), last)
    const error = await retryOnConflict(fn, { maxAttempts: 2 }).catch((thrown: unknown) => thrown)
    expect(error).toMatchObject({ code: 'DIBS_CONFLICT', attempts: 2, sqlState: '40001', cause: last })
  })

  it('starts no attempt after its deadline, nor waits for one that would be', async () => {
    let now = 1_000
    vi.spyOn(performance, 'now').mockImplementation(() => now)
    vi.spyOn(Math, 'random').mockReturnValue(0.999)
    waits.instead = () => {
      now += waits.ms.at(-1) ?? 0
    }
    const { fn } = failing(...Array(20).fill(conflict()))
    const slow = (context: RetryContext) => {
      now += 400
      return fn(context)
    }
    await expect(retryOnConflict(slow, { deadlineMs: 1_000 })).rejects.toMatchObject({ attempts: 3 })
    expect(waits.ms).toHaveLength(2) // a third would have ended at 1,230
  })

  it('starts no attempt if it wakes after its deadline', async () => {
    let now = 1_000
    vi.spyOn(performance, 'now').mockImplementation(() => now)
    waits.instead = () => {
      now += 2_000
    }
    const { fn, attempts } = failing(conflict(), conflict())
    await expect(retryOnConflict(fn, { deadlineMs: 1_000 })).rejects.toMatchObject({ attempts: 1 })
    expect(attempts()).toEqual([1])
  })

  it('lets any number of calls share a signal', async () => {
    const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    const { signal } = new AbortController()
    await Promise.all(
      Array.from({ length: 20 }, () =>
        retryOnConflict(() => new Promise((resolve) => setTimeout(resolve, 5)), { signal }),
      ),
    )
    expect(warn).not.toHaveBeenCalled()
    warn.mockRestore()
  })

  it('tells an attempt that its deadline has passed, and believes what it then says', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] })
    try {
      const listens = retryOnConflict(({ signal }) => whenAborted(signal), { deadlineMs: 700 })
      const ignores = retryOnConflict(({ signal }) => whenAborted(signal).catch(() => 'kept'), {
        deadlineMs: 700,
      })
      const told = expect(listens).rejects.toBeInstanceOf(StatementTimeoutError)
      await vi.advanceTimersByTimeAsync(699)
      expect(vi.getTimerCount()).toBe(2)
      await vi.advanceTimersByTimeAsync(1)
      await told
      expect(await ignores).toBe('kept')
      await retryOnConflict(async () => {})
      expect(vi.getTimerCount()).toBe(0)
    } finally {
      vi.useRealTimers()
    }
  })

  it('can have none', async () => {
    const { fn, seen } = failing(conflict())
    expect(await retryOnConflict(fn, { deadlineMs: Number.POSITIVE_INFINITY })).toBe('done')
    expect(seen[1]?.signal.aborted).toBe(false)
  })

  it('can be what is left of a budget', async () => {
    const { fn } = failing(conflict())
    expect(await retryOnConflict(fn, { deadlineMs: 30_000.25 })).toBe('done')
  })

  it.each<[string, RetryOnConflictOptions | { wrong: 1 } | null]>([
    ['deadlineMs', { deadlineMs: 0 }],
    ['deadlineMs', { deadlineMs: Number.NaN }],
    ['maxAttempts', { maxAttempts: 0 }],
    ['maxAttempts', { maxAttempts: 1.5 }],
    ['signal', { signal: {} as AbortSignal }],
    ['wrong', { wrong: 1 }],
    ['options', null],
  ])('refuses %s as it is in %o', async (field, options) => {
    const fn = vi.fn()
    await expect(retryOnConflict(fn, options as never)).rejects.toMatchObject({
      code: 'DIBS_INVALID_INPUT',
      field,
    })
    expect(fn).not.toHaveBeenCalled()
  })

  it('refuses what is no function', async () => {
    await expect(retryOnConflict(Promise.resolve() as never)).rejects.toMatchObject({ field: 'fn' })
  })
})

const whenAborted = (signal: AbortSignal): Promise<never> =>
  new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))

describe('a signal', () => {
  const reason = new Error('shutting down')

  it('that has fired keeps it from starting', async () => {
    const { fn, attempts } = failing()
    await expect(retryOnConflict(fn, { signal: AbortSignal.abort(reason) })).rejects.toBe(reason)
    expect(attempts()).toEqual([])
  })

  it('ends the wait for an attempt', async () => {
    const ending = new AbortController()
    let isTold = false
    waits.instead = (signal) => {
      ending.abort(reason)
      isTold = signal?.aborted === true
      throw new DOMException('The operation was aborted', 'AbortError')
    }
    const { fn, attempts } = failing(conflict())
    await expect(retryOnConflict(fn, { signal: ending.signal })).rejects.toBe(reason)
    expect(attempts()).toEqual([1])
    expect(isTold).toBe(true)
  })

  it('reaches the attempt, and no other starts after it', async () => {
    const ending = new AbortController()
    let runs = 0
    const running = retryOnConflict(
      async ({ signal }) => {
        runs++
        ending.abort(reason)
        expect(signal.reason).toBe(reason)
        throw conflict()
      },
      { signal: ending.signal },
    )
    await expect(running).rejects.toBe(reason)
    expect(runs).toBe(1)
    expect(waits.ms).toEqual([])
  })

  it('does not take away what an attempt has done', async () => {
    const ending = new AbortController()
    const running = retryOnConflict(
      async () => {
        ending.abort(reason)
        return 'committed'
      },
      { signal: ending.signal },
    )
    expect(await running).toBe('committed')
  })
})

describe('where it stands', () => {
  it('is not inside itself, also not in what an attempt calls later', async () => {
    const inner = vi.fn(async () => {})
    const nested = retryOnConflict(async () => {
      await new Promise((resolve) => setImmediate(resolve))
      await retryOnConflict(inner)
    })
    await expect(nested).rejects.toMatchObject({ code: 'DIBS_NESTED_RETRY', inside: 'retryOnConflict' })
    expect(inner).not.toHaveBeenCalled()
  })

  it('may stand in what an attempt has started and left behind', async () => {
    const ended = deferred()
    let later: Promise<string> = Promise.resolve('')
    await retryOnConflict(async () => {
      later = ended.promise.then(() => retryOnConflict(async () => 'later'))
    })
    ended.resolve()
    expect(await later).toBe('later')
  })

  it('is not inside a transaction, and may stand around one and after it', async () => {
    const database = await openDatabase()
    const inner = vi.fn(async () => 'ran')
    const nested = database.transaction(() => retryOnConflict(inner))
    await expect(nested).rejects.toBeInstanceOf(NestedRetryError)
    expect(inner).not.toHaveBeenCalled()
    const after: string[] = []
    await database.transaction(async (tx) => {
      tx.afterCommit(async () => void after.push(await retryOnConflict(inner)))
    })
    expect(after).toEqual(['ran'])
    expect(await retryOnConflict(() => database.transaction(async (tx) => tx.attempt))).toBe(1)
    await database.drop()
  })

  it('has a transaction inside run once each time and tell nothing of it, unless that says how often', async () => {
    const database = await openDatabase()
    const told: string[] = []
    const names = ['dibs:transaction.retried', 'dibs:transaction.gave-up'] as const
    const stops = names.map((name) => onEvent(name, () => void told.push(name)))
    const cause = conflict()
    const run = async (options = {}): Promise<{ runs: number; error: unknown }> => {
      let runs = 0
      const work = () =>
        database.transaction(async () => {
          runs++
          throw cause
        }, options)
      const error = await retryOnConflict(work, { maxAttempts: 2 }).catch((thrown: unknown) => thrown)
      expect(error).toMatchObject({ code: 'DIBS_CONFLICT', attempts: 2 })
      return { runs, error }
    }
    const plain = await run()
    expect(plain.runs).toBe(2)
    expect((plain.error as Error).cause).toBe(cause)
    expect(told).toEqual([])
    expect((await run({ maxAttempts: 3 })).runs).toBe(6)
    expect(told).toHaveLength(6)
    for (const stop of stops) stop()
    await database.drop()
  })
})

it('loses no update of eight loops that read, compute and write one row', async () => {
  const database = await openDatabase()
  const doc = `"${database.schema}".doc`
  const LOOPS = 8
  const ROUNDS = 15
  await withPool(
    async (pool) => {
      await pool.query(`create table ${doc} (id int primary key, version int not null, n int not null)`)
      await pool.query(`insert into ${doc} values (1, 0, 0)`)
      let runs = 0
      const add = async (): Promise<void> => {
        runs++
        const { rows } = await pool.query(`select version, n from ${doc} where id = 1`)
        const { version, n } = rows[0]
        const { rowCount } = await pool.query(
          `update ${doc} set n = $2, version = version + 1 where id = 1 and version = $1`,
          [version, n + 1],
        )
        if (rowCount === 0) throw conflict({ expected: version })
      }
      const loop = async (): Promise<void> => {
        for (let round = 0; round < ROUNDS; round++) await retryOnConflict(add, { maxAttempts: 1_000 })
      }
      await Promise.all(Array.from({ length: LOOPS }, loop))
      const { rows } = await pool.query(`select version, n from ${doc}`)
      expect(rows).toEqual([{ version: LOOPS * ROUNDS, n: LOOPS * ROUNDS }])
      expect(runs).toBeGreaterThan(LOOPS * ROUNDS) // else nobody was in anybody's way
    },
    { max: LOOPS },
  )
  await database.drop()
})
