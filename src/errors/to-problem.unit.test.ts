import { describe, expect, it } from 'vitest'
import * as errors from '../errors.js'
import { DibsError, errorRegistry } from '../errors.js'
import { problems } from '../http/problem.js'
import { toProblem } from './to-problem.js'

/** Stands for what no client may see: SQL, addresses, names of tables, words of others. */
const SECRET = 'postgres://root:secret@db/shop select * from account'
const cause = new Error(SECRET)
const at = new Date('2026-11-18T16:20:00Z')
const iso = '2026-11-18T16:20:00.000Z'
const row = { subject: SECRET, table: SECRET, id: SECRET, column: SECRET }

/** The error as a client sees it: status, type, and the fields after `retryable`. Undefined: a 500 without details. */
type Seen = readonly [status: number, type: string, details?: object] | undefined

const rateLimited = new errors.RateLimitedError({
  ...{ rateLimit: SECRET, subject: SECRET, limit: 10, cost: 2, remaining: 1, retryAfterMs: 1_500 },
  resetsAt: at,
  cause,
})
const seenRateLimited = { retryAfterMs: 1_500, resetsAt: iso, limit: 10, remaining: 1, cost: 2 }
const held = new errors.LockHeldError(SECRET, 250, { holder: SECRET, leaseUntil: at, cause })
const seenHeld = { retryAfterMs: 250, leaseUntil: iso }

/** One decision for each class. */
const decisions: Record<string, readonly [error: DibsError, seen: Seen]> = {
  FenceLostError: [new errors.FenceLostError(SECRET, 7, { cause }), [409, 'fence-lost']],
  BusyError: [
    new errors.BusyError(SECRET, 500, 250, {
      ...{ holder: SECRET, leaseUntil: at, cause },
      blockers: [{ pid: 1, application: SECRET, query: SECRET, isSure: true }],
    }),
    [503, 'unavailable', seenHeld],
  ],
  ConflictError: [
    new errors.ConflictError({
      subject: SECRET,
      expected: 1,
      current: 2,
      reason: SECRET,
      sqlState: '40001',
      cause,
    }),
    [409, 'conflict', { expected: 1, current: 2 }],
  ],
  PreconditionFailedError: [
    new errors.PreconditionFailedError({ header: 'If-Match', current: 7, etag: '"7"', cause }),
    [412, 'precondition-failed', { header: 'If-Match', current: 7, etag: '"7"' }],
  ],
  PreconditionRequiredError: [
    new errors.PreconditionRequiredError('If-Match', { cause }),
    [428, 'precondition-required', { header: 'If-Match' }],
  ],
  NotFoundError: [new errors.NotFoundError(SECRET, SECRET, SECRET, { cause }), [404, 'not-found']],
  NotWrittenError: [new errors.NotWrittenError(SECRET, SECRET, SECRET, { cause }), [409, 'not-written']],
  StateConflictError: [
    new errors.StateConflictError({ ...row, expected: [SECRET], current: SECRET, cause }),
    [409, 'state-conflict'],
  ],
  InsufficientError: [
    new errors.InsufficientError({ ...row, current: SECRET, delta: '-1', min: '0', max: null, cause }),
    [409, 'insufficient'],
  ],
  RateLimitedError: [rateLimited, [429, 'rate-limited', seenRateLimited]],
  NeverFitsError: [
    new errors.NeverFitsError(SECRET, 11, 10, { cause }),
    [422, 'never-fits', { limit: 10, requested: 11 }],
  ],
  InProgressError: [
    new errors.InProgressError(SECRET, 1_000, SECRET, { cause }),
    [409, 'in-progress', { retryAfterMs: 1_000 }],
  ],
  FingerprintMismatchError: [
    new errors.FingerprintMismatchError(SECRET, SECRET, { cause }),
    [422, 'key-reused'],
  ],
  AmbiguousOutcomeError: [new errors.AmbiguousOutcomeError(SECRET, SECRET, 2, { cause }), [409, 'ambiguous']],
  OutcomeNotStoredError: [
    new errors.OutcomeNotStoredError(SECRET, SECRET, { cause }),
    [503, 'outcome-unknown'],
  ],
  InvalidOutcomeError: [new errors.InvalidOutcomeError(SECRET, SECRET, { cause }), undefined],
  StoredValueError: [new errors.StoredValueError(SECRET, [SECRET], { cause }), undefined],
  SingletonConflictError: [
    new errors.SingletonConflictError({
      ...{ scope: SECRET, id: SECRET, result: SECRET, cause },
      ...{ holder: SECRET, since: at, state: 'pending', retryAfterMs: 250 },
      slot: { key: 'day:2026-11-18', startsAt: at, endsAt: at },
    }),
    [
      409,
      'singleton-conflict',
      {
        ...{ retryAfterMs: 250, state: 'pending', since: iso },
        slot: { key: 'day:2026-11-18', startsAt: iso, endsAt: iso },
      },
    ],
  ],
  QuotaExceededError: [
    new errors.QuotaExceededError({
      ...{ quota: SECRET, subject: SECRET, limit: 10, used: 7, held: 1, requested: 3, cause },
      ...{ resetsAt: at, retryAfterMs: 60_000 },
    }),
    [
      429,
      'quota-exceeded',
      {
        ...{ retryAfterMs: 60_000, resetsAt: iso },
        ...{ limit: 10, used: 7, held: 1, remaining: 2, requested: 3 },
      },
    ],
  ],
  HoldEndedError: [
    new errors.HoldEndedError(SECRET, SECRET, 'expired', SECRET, { cause }),
    [409, 'hold-ended', { state: 'expired' }],
  ],
  LockHeldError: [held, [409, 'lock-held', seenHeld]],
  GuardedError: [
    new errors.GuardedError(SECRET, 500, 250, { cause }),
    [503, 'unavailable', { retryAfterMs: 250 }],
  ],
  AcquireRefusedError: [
    new errors.AcquireRefusedError(
      [
        { index: 0, kind: 'lock', error: held },
        { index: 2, kind: 'rate', error: rateLimited },
      ],
      false,
      false,
      { cause },
    ),
    [
      409,
      'acquire-refused',
      {
        ...{ retryAfterMs: 1_500, isFinal: false },
        failures: [
          expect.objectContaining({ index: 0, kind: 'lock', code: 'DIBS_LOCK_HELD', ...seenHeld }),
          expect.objectContaining({ index: 2, kind: 'rate', code: 'DIBS_RATE_LIMITED', ...seenRateLimited }),
        ],
      },
    ],
  ],
  NotInTransactionError: [new errors.NotInTransactionError(SECRET, SECRET, { cause }), undefined],
  NestedTransactionError: [new errors.NestedTransactionError('dibs.once', { cause }), undefined],
  NestedRetryError: [new errors.NestedRetryError('dibs.transaction', { cause }), undefined],
  NotAwaitedError: [new errors.NotAwaitedError('transaction', [SECRET], { cause }), undefined],
  RolledBackError: [new errors.RolledBackError('transaction', { cause }), undefined],
  TransactionEndedError: [new errors.TransactionEndedError({ cause }), undefined],
  CommitOutcomeUnknownError: [new errors.CommitOutcomeUnknownError(SECRET, { cause }), undefined],
  ConnectionLostError: [new errors.ConnectionLostError(SECRET, { cause }), [503, 'unavailable']],
  ConstraintViolationError: [
    new errors.ConstraintViolationError({
      ...{ sqlState: '23505', kind: 'unique', cause },
      ...{ constraint: SECRET, table: SECRET, column: SECRET, reason: SECRET },
    }),
    [409, 'constraint-violation', { kind: 'unique' }],
  ],
  StatementTimeoutError: [new errors.StatementTimeoutError(SECRET, '57014', { cause }), [504, 'timed-out']],
  DatabaseError: [new errors.DatabaseError(SECRET, '42P01', { cause }), undefined],
  SchemaVersionError: [new errors.SchemaVersionError(SECRET, SECRET, 1, 2, { cause }), undefined],
  SetupError: [new errors.SetupError(SECRET, { cause }), undefined],
  EmbeddedServerError: [new errors.EmbeddedServerError(SECRET, 'port-taken', SECRET, { cause }), undefined],
  InvalidInputError: [new errors.InvalidInputError('attempts', SECRET, { cause }), undefined],
  ClosedError: [new errors.ClosedError({ cause }, SECRET), [503, 'unavailable', { retryable: true }]],
  TransientError: [new errors.TransientError(SECRET, { cause }), [503, 'unavailable']],
  PermanentError: [new errors.PermanentError(SECRET, { cause }), undefined],
  BusinessRuleError: [
    new errors.BusinessRuleError('sold out', 'sold-out', { cause }),
    [422, 'business-rule', { rule: 'sold-out' }],
  ],
  SnoozeError: [
    new errors.SnoozeError(30_000, SECRET, { cause }),
    [503, 'unavailable', { retryAfterMs: 30_000 }],
  ],
  JobTimeoutError: [new errors.JobTimeoutError(SECRET, 1_000, { cause }), [504, 'timed-out']],
  JobCanceledError: [new errors.JobCanceledError(SECRET, SECRET, { cause }), [409, 'job-canceled']],
  JobExpiredError: [new errors.JobExpiredError(SECRET, 1, SECRET, { cause }), [410, 'job-expired']],
  WorkerStoppedError: [new errors.WorkerStoppedError(SECRET, { cause }), [503, 'unavailable']],
  RaceFoundError: [new errors.RaceFoundError(SECRET, [SECRET], SECRET, {}, { cause }), undefined],
  CrashFoundError: [new errors.CrashFoundError(SECRET, SECRET, {}, { cause }), undefined],
  ScheduleDivergedError: [new errors.ScheduleDivergedError(1, SECRET, SECRET, { cause }), undefined],
  ExplorationError: [new errors.ExplorationError(SECRET, 'setup', SECRET, { cause }), undefined],
}

const failed = {
  status: 500,
  headers: { 'content-type': 'application/problem+json', 'cache-control': 'no-store' },
  body: {
    type: 'urn:dibs:problem:failed',
    title: 'The request has failed',
    status: 500,
    detail: 'The request may have been carried out. The log of the service has the reason.',
    retryable: false,
  },
}

describe('a problem', () => {
  it.each(errorRegistry.map((type) => [type.name, type] as const))('of %s', (name, type) => {
    const decision = decisions[name]
    if (!decision) throw new Error(`Decide what a client sees of ${name}: add it to to-problem.ts and here.`)
    const [error, seen] = decision
    expect(error).toBeInstanceOf(type)
    const problem = toProblem(error)
    expect(JSON.stringify(problem)).not.toMatch(/secret|select/)
    if (!seen) return expect(problem).toEqual(failed)
    const [status, kind, details] = seen
    expect(problem.status).toBe(status)
    expect(problem.body).toEqual({
      type: `urn:dibs:problem:${kind}`,
      title: expect.stringMatching(/^[A-Z]/),
      status,
      detail: name === 'BusinessRuleError' ? 'sold out' : expect.stringMatching(/^[A-Z].+\.$/),
      code: type.entry.code,
      retryable: error.retryable,
      ...details,
    })
    expect(JSON.parse(JSON.stringify(problem.body))).toEqual(problem.body)
  })

  it('has one title for each type, which the middleware has too', () => {
    const titles = new Map<string, string>(
      Object.values(problems).map(({ type, title }) => [`urn:dibs:problem:${type}`, title]),
    )
    for (const [error] of Object.values(decisions)) {
      const { type, title } = toProblem(error).body
      expect(titles.get(type) ?? title).toBe(title)
      titles.set(type, title)
    }
  })

  it('says when to try again in whole seconds', () => {
    const after = (ms: number) => toProblem(new errors.BusyError('x', 0, ms)).headers['retry-after']
    expect([1, 1_000, 1_001].map(after)).toEqual(['1', '1', '2'])
    expect(toProblem(decisions.ConflictError?.[0]).headers).toEqual(failed.headers)
  })

  it('of a failed precondition has the current ETag', () => {
    expect(toProblem(decisions.PreconditionFailedError?.[0]).headers).toEqual({
      ...failed.headers,
      etag: '"7"',
    })
    const none = new errors.PreconditionFailedError({ header: 'If-None-Match' })
    expect(toProblem(none)).toMatchObject({ status: 412, headers: failed.headers })
    expect(toProblem(none).body.detail).toBe('The request asks to create something that exists already.')
  })

  it('of a stock that is sold out is no 429, and is not retryable', () => {
    const soldOut = { quota: 'q', subject: 's', limit: 10, used: 10, held: 0, requested: 1 }
    const problem = toProblem(new errors.QuotaExceededError(soldOut))
    expect(problem).toMatchObject({ status: 409, body: { retryable: false, remaining: 0 } })
    expect(problem.body).not.toHaveProperty('retryAfterMs')
    expect(problem.headers).not.toHaveProperty('retry-after')
    expect(toProblem(decisions.InsufficientError?.[0])).toMatchObject({
      status: 409,
      body: { retryable: false },
    })
  })

  it('of a value that the client sent names it', () => {
    const invalid = new errors.InvalidInputError('id', 'must be the id of a job', { status: 400 })
    expect(toProblem(invalid).body).toMatchObject({
      ...{ type: 'urn:dibs:problem:invalid-input', status: 400, field: 'id' },
      detail: '`id` must be the id of a job.',
    })
    const header = new errors.InvalidInputError('If-Match', 'must be one entity tag here', { status: 400 })
    expect(toProblem(header).body.type).toBe('urn:dibs:problem:precondition-invalid')
  })
})

describe('an error that is not of Dibs', () => {
  it.each([
    new Error(SECRET),
    Object.assign(new Error(SECRET), { status: 404 }),
    SECRET,
    undefined,
    null,
    7,
    {},
  ])('is a 500 that tells nothing: %s', (error) => {
    expect(toProblem(error)).toEqual(failed)
  })

  it('is searched for one of Dibs among its causes', () => {
    const wrapped = new Error(`Failed query: ${SECRET}`, { cause: new Error(SECRET, { cause: held }) })
    expect(toProblem(wrapped)).toEqual(toProblem(held))
    const fault = new errors.DatabaseError(SECRET, '42P01', { cause: held })
    expect(toProblem(fault)).toEqual(failed)
    const circle = new Error(SECRET)
    circle.cause = circle
    expect(toProblem(circle)).toEqual(failed)
  })
})

describe('an error of a class made by the user', () => {
  it('is shown as the class that it extends', () => {
    class SoldOutError extends errors.BusinessRuleError {
      readonly sku = SECRET
    }
    expect(toProblem(new SoldOutError('sold out', 'sold-out')).body).toEqual(
      toProblem(decisions.BusinessRuleError?.[0]).body,
    )
  })

  it('shows its code alone if it extends DibsError', () => {
    const make = (status: number): DibsError => {
      class OwnError extends DibsError {
        static override readonly entry = {
          ...({ code: 'DIBS_MY_OWN', status, retryable: true, means: SECRET, remedy: SECRET } as const),
        }
        readonly hidden = SECRET
      }
      return new OwnError(SECRET)
    }
    expect(toProblem(make(423)).body).toEqual({
      type: 'urn:dibs:problem:my-own',
      title: 'The request was refused',
      status: 423,
      detail: 'The log of the service has the reason.',
      code: 'DIBS_MY_OWN',
      retryable: true,
    })
    for (const status of [500, 200, 1_000, Number.NaN]) expect(toProblem(make(status))).toEqual(failed)
  })
})
