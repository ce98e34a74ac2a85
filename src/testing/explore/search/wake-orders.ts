import { isServerOrdered, stepSignature, type Trace, type TraceStep } from '../schedule/trace.js'

/** How often a schedule is run again to see the server wake waiting units in another order. */
export const MAX_WAKE_TRIES = 5
/** How many such tries for the same statements may fail before they count as having one order only. */
const MAX_FAILED_TRIES = 25

/**
 * Tracks the orders in which the server wakes units that wait for one lock. The explorer cannot choose this order. The
 * search can only run the same choices again until both orders were seen.
 */
export class WakeOrders {
  /** True if the server used only one order at some step. */
  hasUnseenOrder = false
  readonly #notes: Set<string>
  /** By the competing statements: how many tries for another order failed. */
  readonly #failedTries = new Map<string, number>()
  /** Paths that `isNew` has seen, up to a step with another wake order. */
  readonly #seen = new Set<string>()

  constructor(notes: Set<string>) {
    this.#notes = notes
  }

  /** Called before the search starts anew. */
  forget(): void {
    this.#seen.clear()
    this.hasUnseenOrder = false
  }

  noteUnseen({ statement, waiters }: TraceStep): void {
    this.hasUnseenOrder = true
    this.#notes.add(
      `${JSON.stringify(statement)} frees a lock that ${waiters} wait for; who of them goes first is the server's choice, and it was seen in one order only.`,
    )
  }

  /** True the first time that this path up to step `at` is seen. */
  isNew({ steps }: Trace, at: number): boolean {
    const path = steps
      .slice(0, at + 1)
      .map((step) => (isServerOrdered(step) ? stepSignature(step) : step.unit))
      .join('\n')
    if (this.#seen.has(path)) return false
    this.#seen.add(path)
    return true
  }

  /**
   * Runs a schedule again until the server chooses another order at step `at`.
   *
   * @param repeat runs the schedule again; its result is undefined if the schedule failed, which ends the tries
   */
  async findOther(
    trace: Trace,
    at: number,
    repeat: () => Promise<Trace | undefined>,
  ): Promise<Trace | undefined> {
    const signature = stepSignature(trace.steps[at] as TraceStep)
    const statements = competingStatements(trace, at)
    for (let tries = 0; tries < MAX_WAKE_TRIES; tries++) {
      const failed = this.#failedTries.get(statements) ?? 0
      if (failed >= MAX_FAILED_TRIES) return undefined
      const again = await repeat()
      if (!again) return undefined
      const step = again.steps[at]
      if (step && stepSignature(step) !== signature) {
        // Both orders occur for these statements, so the number of tries is no longer limited for them.
        this.#failedTries.set(statements, Number.NEGATIVE_INFINITY)
        return again
      }
      this.#failedTries.set(statements, failed + 1)
    }
    return undefined
  }
}

/** A key that is equal for all steps at which the same statements compete, whichever units sent them. */
function competingStatements({ steps }: Trace, at: number): string {
  const { statement, resumed, waiters } = steps[at] as TraceStep
  const statementOf = (unit: string): string =>
    steps.slice(0, at).findLast((step) => step.unit === unit)?.statement ?? ''
  return JSON.stringify([statement, waiters, resumed.map(({ unit }) => statementOf(unit)).toSorted()])
}
