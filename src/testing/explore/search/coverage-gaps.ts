import { countOf, type StepResult } from '../../gate/result.js'
import { actorOf, type Trace, type TraceStep } from '../schedule/trace.js'

/** Collects the events that the explorer could not try in every order, as notes for the report. */
export class CoverageGaps {
  /** True if a pool was full. The order in which waiting calls got a connection was not explored. */
  hasFullPool = false
  /** True if an actor that polls had to wait for the others. */
  hasIdleLoop = false
  /** True if a timeout that an actor had set ended a statement. */
  hasTimedOut = false
  /** By the actor: its last statement that locked several rows. */
  readonly #multiRowLocks = new Map<string, string>()
  readonly #notes = new Set<string>()

  observe({ steps }: Trace): void {
    for (const step of steps) {
      if (Object.keys(step.poolWaits).length > 0) this.hasFullPool = true
      if (step.loops) {
        this.hasIdleLoop = true
        this.#notes.add(
          `${actorOf(step.loops)} repeats the same statements without effect, so it had to wait until another actor did something. Orders in which it goes on were not run.`,
        )
      }
      if (locksManyRows(step)) this.#multiRowLocks.set(actorOf(step.unit), step.statement)
      if (/^do\b/i.test(step.statement) && !step.statement.includes('dibs_point'))
        this.#notes.add("A DO block runs as one step: it has no yield point (perform dibs_point('name')).")
      if ([step, ...step.resumed].some(({ effect }) => effect.kind === 'done' && isTimeout(effect.result)))
        this.hasTimedOut = true
      if (/\block_timeout\b/i.test(step.text + step.settings.join()))
        this.#notes.add('An actor sets lock_timeout: that ends a wait in real time, and here only by chance.')
    }
  }

  get notes(): readonly string[] {
    const notes = [...this.#notes]
    const [first] = this.#multiRowLocks.values()
    if (this.#multiRowLocks.size > 1)
      notes.push(
        `Several actors lock more than one row in one statement (${JSON.stringify(first)}). A statement is one step, so a deadlock of two such statements, which lock their rows one by one, is not seen.`,
      )
    if (this.hasFullPool)
      notes.push(
        'A pool was full: who got the next connection was not tried in every order, only first come, first served.',
      )
    return notes
  }
}

/** True for `lock_timeout` and `statement_timeout`. NOWAIT has the code of `lock_timeout`, but another message. */
const isTimeout = ({ error }: StepResult): boolean =>
  error?.code === '57014' || (error?.code === '55P03' && /timeout/i.test(error.message))

/** True if the statement locked several rows, as counted by the server. */
function locksManyRows({ effect, statement }: TraceStep): boolean {
  if (effect.kind !== 'done') return false
  const { command, count } = countOf(effect.result)
  const locks = /\bfor\s+(?:no\s+key\s+update|update|key\s+share|share)\b/i.test(statement)
  return count > 1 && command !== 'COPY' && (command !== 'SELECT' || locks)
}
