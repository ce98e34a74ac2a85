import { countOf, type StepResult } from '../../gate/result.js'
import { actorOf, type Trace, type TraceStep } from '../schedule/trace.js'

/** What a schedule shows of things that the explorer cannot take apart, or leaves to chance. */
export class Cautions {
  /** A pool was full, and who got its next connection was not tried in every order. */
  hasFullPool = false
  /** An actor that polls was made to wait for the others. */
  hasIdleLoop = false
  /** A statement was ended by a timeout of its own. */
  hasTimedOut = false
  readonly #manyRows = new Map<string, string>()
  readonly #notes = new Set<string>()

  read({ steps }: Trace): void {
    for (const step of steps) {
      if (Object.keys(step.poolWaits).length > 0) this.hasFullPool = true
      if (step.loops) {
        this.hasIdleLoop = true
        this.#notes.add(
          `${actorOf(step.loops)} asks the same again and again, and was made to wait for somebody else to move: orders in which it goes on asking were not run.`,
        )
      }
      if (locksManyRows(step)) this.#manyRows.set(actorOf(step.unit), step.statement)
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
    const [first] = this.#manyRows.values()
    if (this.#manyRows.size > 1)
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

/** Of `lock_timeout` and `statement_timeout`; NOWAIT has the code of the first, and other words. */
const isTimeout = ({ error }: StepResult): boolean =>
  error?.code === '57014' || (error?.code === '55P03' && /timeout/i.test(error.message))

/** By the server's own count. */
function locksManyRows({ effect, statement }: TraceStep): boolean {
  if (effect.kind !== 'done') return false
  const { command, count } = countOf(effect.result)
  const locks = /\bfor\s+(?:no\s+key\s+update|update|key\s+share|share)\b/i.test(statement)
  return count > 1 && command !== 'COPY' && (command !== 'SELECT' || locks)
}
