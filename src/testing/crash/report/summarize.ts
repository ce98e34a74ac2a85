import { count } from '../../count.js'
import type { CrashReport } from './report.js'

/** Summarizes a report in one sentence. */
export function summarize(
  report: Pick<CrashReport, 'points' | 'statements' | 'runs' | 'tookMs' | 'modes'>,
): string {
  const { points, statements, runs, tookMs, modes } = report
  const [base, ...faulty] = points
  const scope = `(${count(statements, 'statement')}, ${count(runs, 'run')}, ${(tookMs / 1_000).toFixed(1)} s)`
  if (base?.verdict === 'failed') return `It fails with nothing done to it ${scope}.`
  const failed = faulty.filter(({ verdict }) => verdict === 'failed').length
  const kinds = modes.flatMap((mode) => {
    const of = faulty.filter(({ fault }) => fault?.mode === mode).length
    return of > 0 ? [`${mode} ${of}`] : []
  })
  const what = kinds.length > 0 ? `: ${kinds.join(', ')}` : ''
  if (failed > 0) return `Harm at ${failed} of ${count(faulty.length, 'point')}${what} ${scope}.`
  return `No harm at ${faulty.length === 1 ? 'the one point' : `any of ${count(faulty.length, 'point')}`}${what} ${scope}.`
}
