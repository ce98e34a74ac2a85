import type { Health } from '../ops/health.js'

/** An answer over HTTP, its body as JSON. */
export interface Answer {
  readonly status: number
  readonly body: object
  readonly headers?: Readonly<Record<string, string>>
}

/** What the probes ask; a `Dibs` is one. */
export interface HealthSource {
  health(): Promise<Health>
}

/** What an orchestrator is told about this process: whether it is well, and whether to send it work. */
export class Probes {
  #source: HealthSource | undefined
  #isStopping = false
  #asking: Promise<Health> | undefined

  /** It is open and migrated. */
  opened(source: HealthSource): void {
    this.#source = source
  }

  stopping(): void {
    this.#isStopping = true
  }

  async healthz(): Promise<Answer> {
    if (!this.#source) return { status: 503, body: { ok: false, problem: 'starting' } }
    const health = await this.#ask(this.#source)
    return { status: health.ok ? 200 : 503, body: health }
  }

  async readyz(): Promise<Answer> {
    if (this.#isStopping) return notReady('stopping')
    if (!this.#source) return notReady('starting')
    const { ok, problem } = await this.#ask(this.#source)
    if (this.#isStopping) return notReady('stopping') // since it was asked
    return ok ? { status: 200, body: { ready: true } } : notReady(problem)
  }

  /** Those who ask at once share one answer, so that no crowd of probes takes the pool from the work. */
  #ask(source: HealthSource): Promise<Health> {
    this.#asking ??= source.health().finally(() => {
      this.#asking = undefined
    })
    return this.#asking
  }
}

const notReady = (problem = 'unknown'): Answer => ({ status: 503, body: { ready: false, problem } })
