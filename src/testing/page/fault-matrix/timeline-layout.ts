import type { StatementLine, StoryLine } from '../../crash/story.js'
import { actorOf } from '../../explore/schedule/trace.js'
import { type Folded, foldRepeats, type TimelineLine } from './fold-repeats.js'

/** The rail of an instance beside a row. `gap`: another instance runs in the meantime. */
export type Rail = 'on' | 'gap' | undefined

type Content =
  | { readonly kind: 'head'; readonly name: string; readonly isBack: boolean }
  | { readonly kind: 'statement'; readonly line: StatementLine }
  | Folded
  | { readonly kind: 'event' | 'fault'; readonly text: string }

/** The lane of a row. All recoveries share one lane, because only one of them runs at a time. */
interface Position {
  /** The instance: `run`, `recovery 2`. */
  readonly owner: string
  /** 0: run; 1: recovery. */
  readonly lane: 0 | 1
  readonly color: number
}

export type TimelineRow = Content & Position & { readonly rails: readonly [Rail, Rail] }

/** The number of colors for recoveries. Color 0 is that of `run`. */
const RECOVERY_COLORS = 5

/**
 * Lays a story out in rows, with a head wherever another instance continues.
 *
 * @param baseline the statements of the run without a fault. Long stretches of them are folded
 */
export function layOutTimeline(
  story: readonly StoryLine[],
  baseline: readonly string[] = [],
): readonly TimelineRow[] {
  const rows = withHeads(foldRepeats(story, baseline))
  const spans = new Map<string, { lane: 0 | 1; first: number; last: number }>()
  for (const [i, { owner, lane }] of rows.entries())
    spans.set(owner, { lane, first: spans.get(owner)?.first ?? i, last: i })
  const railOf = (lane: 0 | 1, i: number): Rail => {
    if (rows[i]?.lane === lane) return 'on'
    const isBetween = [...spans.values()].some(
      (span) => span.lane === lane && span.first < i && i < span.last,
    )
    return isBetween ? 'gap' : undefined
  }
  return rows.map((row, i) => ({ ...row, rails: [railOf(0, i), railOf(1, i)] }))
}

function withHeads(lines: readonly TimelineLine[]): readonly (Content & Position)[] {
  const rows: (Content & Position)[] = []
  const seen = new Set<string>()
  let owner = ''
  for (const line of lines) {
    const next = 'who' in line ? actorOf(line.who) : owner
    if (next !== owner) {
      owner = next
      rows.push({ ...positionOf(owner), kind: 'head', name: owner, isBack: seen.has(owner) })
      seen.add(owner)
    }
    rows.push({ ...positionOf(owner), ...contentOf(line) })
  }
  return rows
}

function contentOf(line: TimelineLine): Content {
  if (line.kind === 'statement') return { kind: 'statement', line }
  return line.kind === 'folded' ? line : { kind: line.isFault ? 'fault' : 'event', text: line.text }
}

function positionOf(owner: string): Position {
  const number = Number(/^recovery (\d+)$/.exec(owner)?.[1] ?? 0)
  return {
    owner,
    lane: number > 0 ? 1 : 0,
    color: number > 0 ? 1 + ((number - 1) % RECOVERY_COLORS) : 0,
  }
}
