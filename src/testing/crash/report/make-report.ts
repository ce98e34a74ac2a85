import { count } from '../../count.js'
import { showStatement } from '../../explore/report/printout.js'
import { identityOf } from '../../identity-of.js'
import type { Findings } from '../crash-search.js'
import { type CrashMode, DEFAULT_MODES, encodeFault } from '../fault.js'
import type { CrashLoopOptions } from '../options.js'
import type { CrashFailure, RunRecord } from '../run-record.js'
import { type StatementLine, statementsOfRun } from '../story.js'
import { printReport, showSome } from './printout.js'
import { RecoveryPathNames } from './recovery-path-names.js'
import type { CrashPoint, CrashReport } from './report.js'
import { summarize } from './summarize.js'

/** Makes the report of a crash loop. */
export function makeReport(findings: Findings, options: CrashLoopOptions): CrashReport {
  const { records, alone, agreements, runs, tookMs } = findings
  const [base] = records as [RunRecord]
  const paths = new RecoveryPathNames(alone, base.story)
  const points = records.map((record) => pointOf(record, paths, agreements))
  const facts = {
    verdict: points.some(({ verdict }) => verdict === 'failed') ? ('failed' as const) : ('passed' as const),
    statements: statementsOfRun(base.story).length,
    runs,
    modes: modesOf(points, options),
    tookMs,
    seed: options.seed ?? 1,
    identity: identityOf(options),
    points,
    paths: paths.all,
    notes: [...notesOn(points, options), ...notesOnStatements(findings, options)],
  }
  const report = { ...facts, summary: summarize(facts) }
  return { ...report, printout: printReport(report) }
}

function pointOf(
  record: RunRecord,
  paths: RecoveryPathNames,
  agreements: ReadonlyMap<string, boolean>,
): CrashPoint {
  const { fault, isReached, line, failure, waited, lateWrites, repeated, run, recoveries, story } = record
  const replay = encodeFault(fault)
  const agrees = agreements.get(replay)
  return {
    replay,
    fault: fault ?? null,
    statement: line ? shown(line) : '',
    verdict: failure ? 'failed' : 'passed',
    ...(failure ? { failure: isReached || !fault ? failure : withoutFault(failure) } : {}),
    run,
    recoveries,
    ...paths.read(story, fault !== undefined),
    ...(waited === undefined ? {} : { waited }),
    lateWrites,
    repeatedEffects: repeated,
    ...(agrees === undefined ? {} : { agrees }),
    story,
  }
}

/** Adds to a failure that its run ended before the point of the fault. */
const withoutFault = ({ kind, message }: CrashFailure): CrashFailure => ({
  kind,
  message: `${message}\nIt came to its end before this point: nothing was done to it.`,
})

/** The modes of the loop. A replay has only the mode of its point. */
function modesOf(
  points: readonly CrashPoint[],
  { modes = DEFAULT_MODES, replay }: CrashLoopOptions,
): readonly CrashMode[] {
  if (replay === undefined) return [...new Set(modes)]
  return points.flatMap(({ fault }) => (fault ? [fault.mode] : []))
}

/** Notes about a `run` that does not send the same statements each time. Points are numbered by statement. */
function notesOnStatements(
  { records: [base, ...records], missed }: Findings,
  { modes = DEFAULT_MODES, effects }: CrashLoopOptions,
): readonly string[] {
  const lines = statementsOfRun(base?.story ?? [])
  const other = records.find(({ line }) => line && lines[line.number - 1]?.text !== line.text)
  return [
    ...(missed.length > 0
      ? [
          `\`run\` came to its end before points that it has without a fault, which were not tried: ${showSome(missed)}. What it does must not depend on what an earlier run has left.`,
        ]
      : []),
    ...(other
      ? [
          `\`run\` does not send the same statements each time: statement ${other.line?.number} was another one at ${encodeFault(other.fault)}. Timers do that. Points are not the same from run to run then.`,
        ]
      : []),
    ...(effects && modes.includes('process')
      ? ['What a child process does to the world outside is not seen here.']
      : []),
  ]
}

const shown = ({ text, values }: StatementLine): string => showStatement(text, values)

function notesOn(points: readonly CrashPoint[], { replay, recover }: CrashLoopOptions): readonly string[] {
  const [base, ...faulty] = points
  const waited = faulty.filter((point) => point.waited !== undefined)
  const differ = faulty.filter(({ agrees }) => agrees === false)
  const died = base?.run === 'died' ? ['Even with nothing done to it, `run` died by itself.'] : []
  return [
    ...died,
    ...(recover &&
    faulty.length > 0 &&
    replay === undefined &&
    faulty.every(({ entersRecovery }) => !entersRecovery)
      ? [
          'Recovery never did anything that it does not do on fresh data or after a run without a fault. Either nothing needs to be recovered, or `recover` is not the code that would.',
        ]
      : []),
    ...(waited.length > 0
      ? [
          `At ${count(waited.length, 'point')} recovery waited for a transaction of a process that was gone or asleep; idle_in_transaction_session_timeout would bound that: ${showSome(waited.map((point) => point.replay))}.`,
        ]
      : []),
    ...(differ.length > 0
      ? [
          `A real process did not do the same as the one within this process: ${showSome(differ.map((point) => point.replay))}.`,
        ]
      : []),
  ]
}
