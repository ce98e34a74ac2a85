import type { TransactionStatus } from '../wire/backend.js'
import type { Plan } from './plan.js'

/**
 * The start of a client's transaction. BEGIN takes effect only with the first step of the transaction, so that its `now()`
 * and its snapshot are those of the step.
 */
export class TransactionStart {
  /** A BEGIN that the client takes for done and that the server has not received. */
  #deferredBegin: string | undefined
  /** The statements of a transaction that has executed no step, from its BEGIN on. */
  #statements: string[] = []

  get isDeferred(): boolean {
    return this.#deferredBegin !== undefined
  }

  /** True while the server has a transaction open that has executed no step. */
  get isWithoutStep(): boolean {
    return this.#statements.length > 0
  }

  clear(): void {
    this.#deferredBegin = undefined
    this.#statements = []
  }

  defer(begin: string): void {
    this.#deferredBegin = begin
  }

  /** Returns the deferred BEGIN, which the caller sends now. */
  takeDeferred(): string | undefined {
    const begin = this.#deferredBegin
    this.#deferredBegin = undefined
    return begin
  }

  /**
   * Records a request that is no step.
   *
   * @param status the server's status before the request
   */
  note(text: string, status: TransactionStatus, plan: Plan): void {
    if (this.#deferredBegin !== undefined) this.#statements = [this.#deferredBegin, text]
    else if (status === 'I' && plan.begins) this.#statements = [text]
    else if (status === 'T' && this.isWithoutStep) this.#statements.push(text)
    else this.#statements = []
  }

  forgetStatements(): void {
    this.#statements = []
  }

  /**
   * Returns what is sent before the explorer's own settings, and what is sent after them. Where BEGIN has reached the server
   * before its first step, the transaction is rolled back and begins anew.
   *
   * @param opensOwn the step opens a transaction of the explorer
   */
  take(status: TransactionStatus, opensOwn: boolean): readonly string[] {
    const statements = this.#statements
    const begin = this.takeDeferred()
    this.#statements = []
    if (opensOwn) return ['', 'begin']
    if (begin !== undefined) return ['', begin]
    // The newline ends a comment at the end of a statement, which would swallow the next statement.
    return statements.length > 0 && status === 'T' ? ['rollback', statements.join('\n; ')] : []
  }
}
