import { DEFAULT_MODES, decodeFault } from '../src/testing/crash/fault.js'
import { printReport } from '../src/testing/crash/report/printout.js'
import type { CrashPoint, CrashReport } from '../src/testing/crash/report/report.js'
import { summarize } from '../src/testing/crash/report/summarize.js'
import type { StatementEffect, StatementLine, StoryLine } from '../src/testing/crash/story.js'

export const answered = (tag: string, ...rows: (string | null)[][]): StatementEffect => ({
  kind: 'done',
  result: { tag, rows, rowCount: rows.length },
})

export const madeLine = (
  who: string,
  number: number,
  text: string,
  effect: StatementEffect = answered('UPDATE 1'),
  more: Partial<StatementLine> = {},
): StatementLine => ({
  kind: 'statement',
  who,
  number,
  text,
  values: [],
  commits: true,
  rollsBack: false,
  effect,
  ...more,
})

/** A point as the crash loop makes it, of a run that nobody made. */
export function madePoint(
  replay: string,
  story: readonly StoryLine[],
  more: Partial<CrashPoint> = {},
): CrashPoint {
  return {
    replay,
    fault: decodeFault(replay) ?? null,
    statement: 'update claim set status = 1',
    verdict: more.failure ? 'failed' : 'passed',
    run: 'died',
    recoveries: 1,
    path: 'from the start',
    entersRecovery: false,
    lateWrites: [],
    repeatedEffects: [],
    story,
    ...more,
  }
}

export function madeCrash(points: readonly CrashPoint[], more: Partial<CrashReport> = {}): CrashReport {
  const facts = {
    verdict: points.some(({ verdict }) => verdict === 'failed') ? ('failed' as const) : ('passed' as const),
    statements: 3,
    runs: points.length + 1,
    modes: DEFAULT_MODES,
    tookMs: 1230,
    seed: 1,
    identity: '8c1f20',
    points,
    paths: [],
    notes: [],
    ...more,
  }
  const report = { ...facts, summary: summarize(facts) }
  return { ...report, printout: printReport(report), ...more }
}

/** More than two thousand points: forty statements, in all modes, with a second crash at each place of a long recovery. */
export function largeCrash(): CrashReport {
  const text = (n: number) =>
    `update orders set status = 'step ${n}', changed_at = now() where id = $1 and tenant = 'acme' returning id, status`
  const linesOf = (who: string, from: number, to: number) =>
    Array.from({ length: to - from + 1 }, (_, i) =>
      madeLine(who, i + 1, text(from + i), answered('UPDATE 1', ['7', 'open']), { values: ['7'] }),
    )
  const storyOf = (n: number, second: number): StoryLine[] => [
    ...linesOf('run', 1, n),
    { kind: 'event', text: 'the process is killed', isFault: true },
    ...linesOf('recovery 1', n, n + second).map((line) => ({ ...line, effect: answered('UPDATE 0') })),
    { kind: 'event', text: 'recovery 1 fails: not yet' },
    ...linesOf('recovery 2', n, 40),
  ]
  const replays = Array.from({ length: 40 }, (_, i) => i + 1).flatMap((n) =>
    ['before', 'after'].flatMap((side) => [
      ...['crash', 'half-open', 'zombie'].map((mode) => `${mode}:${side}-${n}`),
      ...['57P01', '57P02', '57P03', '08006', '08003'].map((code) => `error:${side}-${n}:${code}`),
      ...Array.from({ length: 10 }, (_, i) => i + 1).flatMap((again) => [
        `crash:${side}-${n}:again-before-${again}`,
        `crash:${side}-${n}:again-after-${again}`,
      ]),
    ]),
  )
  const points = replays.map((replay, i) => {
    const fault = decodeFault(replay)
    const n = fault?.statement ?? 1
    const fails = n % 3 === 0 && (fault?.again?.statement ?? 0) % 4 === 0
    const failure = { kind: 'invariant', message: `${n} events, not one` } as const
    return madePoint(replay, storyOf(n, fault?.again?.statement ?? 0), {
      path: `W${i}`,
      entersRecovery: true,
      ...(fails ? { failure } : {}),
    })
  })
  const paths = points.map(({ path }) => ({
    name: path,
    statements: Array.from({ length: 30 }, (_, i) => `${text(i)} -> UPDATE 1`),
    points: 1,
  }))
  return madeCrash([madePoint('none', linesOf('run', 1, 40), { run: 'fulfilled' }), ...points], {
    statements: 40,
    paths,
  })
}
