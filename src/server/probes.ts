import type { Health } from '../ops/health.js'

/** An answer over HTTP, its body as JSON. */
export interface Answer {
  readonly status: number
  readonly body: object
  readonly headers?: Readonly<Record<string, string>>
}

/** The source of the health of the database: a `Dibs` instance. */
export interface HealthSource {
  health(): Promise<Health>
}

/** The answers of the probes of an orchestrator: whether this process is healthy, and whether it takes work. */
export class Probes {
  #source: HealthSource | undefined
  #isStopping = false
  #checking: Promise<Health> | undefined

  /** Call when the database is open and migrated. */
  opened(source: HealthSource): void {
    this.#source = source
  }

  stopping(): void {
    this.#isStopping = true
  }

  async healthz(): Promise<Answer> {
    if (!this.#source) return { status: 503, body: { ok: false, problem: 'starting' } }
    const health = await this.#check(this.#source)
    return { status: health.ok ? 200 : 503, body: health }
  }

  async readyz(): Promise<Answer> {
    if (this.#isStopping) return notReady('stopping')
    if (!this.#source) return notReady('starting')
    const { ok, problem } = await this.#check(this.#source)
    if (this.#isStopping) return notReady('stopping') // `stopping` was called during the check
    return ok ? { status: 200, body: { ready: true } } : notReady(problem)
  }

  /** Concurrent probes share one check, so that they do not use up the pool. */
  #check(source: HealthSource): Promise<Health> {
    this.#checking ??= source.health().finally(() => {
      this.#checking = undefined
    })
    return this.#checking
  }
}

const notReady = (problem = 'unknown'): Answer => ({ status: 503, body: { ready: false, problem } })
