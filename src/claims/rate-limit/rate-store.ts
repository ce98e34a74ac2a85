import { MAX_TIMER_MS } from '../../options/max-timer-ms.js'
import { Coalescer } from '../../postgres/coalescer.js'
import type { Database } from '../../postgres/database.js'
import { emit, isHeard } from '../../postgres/events.js'
import type { Tx } from '../../postgres/executor.js'
import { hashKey } from '../../postgres/key.js'
import { orBusy } from '../../postgres/or-busy.js'
import type { Statement } from '../../postgres/statement.js'
import { type TextValue, textArray } from '../../postgres/text-values.js'
import { sendSorted } from '../send-sorted.js'
import { DatabaseBreaker, DatabaseUnavailable } from './database-breaker.js'
import { LocalRates, type RateDecision } from './local-rates.js'
import type { RateSpec } from './rate-spec.js'
import { peekRate, takeRate, takeRateJoined, takeRates } from './rate-statements.js'

/** How long after the circuit breaker has given up a statement its connection is cut. */
const CUT_MS = 100

export interface RateRequest {
  readonly subject: string
  /** 0 takes nothing. */
  readonly cost: number
}

export type Decision = RateDecision & {
  /** True if the database could not be reached, and `ifDown` has decided. */
  readonly degraded: boolean
}

/** The answer of the SQL functions for one subject: a decision for each cost. */
type SubjectAnswer = readonly RateDecision[] | { readonly state: 'busy' }

/** Sends the statements of one rate limit. Concurrent takes share a statement. If the database is down, does what `ifDown` says. */
export class RateStore {
  readonly #database: Database
  readonly #spec: RateSpec
  /** The values of the spec that follow the subject in every statement. */
  readonly #rule: readonly TextValue[]
  readonly #coalescer: Coalescer<RateRequest, RateDecision>
  /** Only for the `ifDown` policies that can decide without the database. */
  readonly #breaker: DatabaseBreaker | undefined
  readonly #local: LocalRates | undefined

  constructor(database: Database, spec: RateSpec) {
    this.#database = database
    this.#spec = spec
    this.#rule = [spec.rule, spec.algorithm, ...[spec.limit, spec.perUs, spec.capacity].map(String)]
    this.#coalescer = new Coalescer(
      (requests, waitMs) => this.#takeOneSubject(requests, Math.min(waitMs, spec.waitMs)),
      { sendMany: (groups) => this.#takeManySubjects(groups) },
    )
    // guard: rate.fail-closed
    if (spec.ifDown !== 'fail') this.#breaker = new DatabaseBreaker(spec.downAfterMs)
    if (spec.ifDown === 'local') this.#local = new LocalRates(spec)
  }

  async take(request: RateRequest, tx: Tx | undefined): Promise<Decision> {
    const { waitMs, downAfterMs, ifDown } = this.#spec
    const { subject, cost } = request
    if (tx !== undefined) {
      const values = [...this.#values(subject), `{${cost}}`, String(waitMs)]
      return firstDecision(await this.#send(takeRateJoined, values, tx))
    }
    // While it is unknown whether the database is down, the calls behind the first wait for its result.
    const queueMs = ifDown === 'fail' ? waitMs : Math.min(waitMs + downAfterMs, MAX_TIMER_MS)
    return await this.#orDegraded(request, () =>
      this.#coalescer.add(subject, request, { waitMs: queueMs, subject: this.#busySubject }),
    )
  }

  async peek(subject: string, tx: Tx | undefined): Promise<Decision> {
    const values = this.#values(subject)
    if (tx !== undefined) return firstDecision(await this.#send(peekRate, values, tx))
    return await this.#orDegraded({ subject, cost: 0 }, async () =>
      firstDecision(await this.#send(peekRate, values)),
    )
  }

  async #takeOneSubject(requests: readonly RateRequest[], waitMs: number): Promise<readonly RateDecision[]> {
    const subject = requests[0]?.subject ?? ''
    const values = [...this.#values(subject), writeCosts(requests), String(this.#database.boundWait(waitMs))]
    return await this.#send(takeRate, values)
  }

  /** Each group is for one subject. This statement does not wait for a subject that another caller has locked. */
  async #takeManySubjects(
    groups: readonly (readonly RateRequest[])[],
  ): Promise<readonly (readonly RateDecision[] | undefined)[]> {
    const requests = groups.map((group) => ({ subject: group[0]?.subject ?? '', costs: writeCosts(group) }))
    return await sendSorted(requests, async (sorted) => {
      const subjects = textArray(sorted.map(({ subject }) => subject))
      const costs = textArray(sorted.map((one) => one.costs))
      const answers = await this.#send<readonly SubjectAnswer[]>(takeRates, [
        ...this.#values(subjects),
        costs,
      ])
      return answers.map((answer) => ('state' in answer ? undefined : answer))
    })
  }

  #values(subjects: string): TextValue[] {
    return [this.#spec.name, subjects, ...this.#rule]
  }

  /** Sends a statement and parses its answer. */
  async #send<T extends object = readonly RateDecision[]>(
    statement: Statement,
    values: readonly TextValue[],
    tx?: Tx,
  ): Promise<T> {
    const send = async (): Promise<T> => {
      const [row] = await (tx === undefined
        ? this.#sendOutsideTransaction(statement, values)
        : this.#database.send(statement, values, { tx }))
      return JSON.parse(`${row?.result}`)
    }
    return await orBusy(this.#busySubject, send)
  }

  #sendOutsideTransaction(statement: Statement, values: readonly TextValue[]) {
    const { waitMs, downAfterMs } = this.#spec
    if (!this.#breaker) return this.#database.send(statement, values, { waitMs })
    // A silent network must not keep a connection of the pool after the circuit breaker has given up.
    return this.#breaker.run(() =>
      this.#database.send(statement, values, { deadlineMs: downAfterMs + CUT_MS }),
    )
  }

  async #orDegraded({ subject, cost }: RateRequest, decide: () => Promise<RateDecision>): Promise<Decision> {
    try {
      this.#breaker?.assertAvailable()
      return { ...(await decide()), degraded: false }
    } catch (error) {
      if (!(error instanceof DatabaseUnavailable)) throw error
      if (isHeard('dibs:rate.degraded')) {
        const policy = this.#local ? 'local' : 'allow'
        emit('dibs:rate.degraded', { ...this.originOf(subject), policy, error: error.cause })
      }
      const unused = { granted: true, remaining: this.#spec.capacity - cost, resetUs: 0 }
      return { ...(this.#local?.take(subject, cost) ?? unused), degraded: true }
    }
  }

  get #busySubject(): string {
    return `a turn at rate limit "${this.#spec.name}"`
  }

  /** The fields of events about a subject. */
  originOf(subject: string) {
    const { name } = this.#spec
    return { ...this.#database.origin, template: `${name}:*`, keyHash: hashKey(`${name}:${subject}`) }
  }
}

const writeCosts = (requests: readonly RateRequest[]): string =>
  `{${requests.map(({ cost }) => cost).join(',')}}`

const firstDecision = ([decision]: readonly RateDecision[]): Decision => ({
  ...(decision as RateDecision),
  degraded: false,
})
