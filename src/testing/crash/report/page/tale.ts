import { actorOf } from '../../../explore/schedule/trace.js'
import type { StatementLine, StoryLine } from '../../story.js'
import { type Folded, fold, type Told } from './fold.js'

/** How the rail of an instance runs past a row: it is at work, or another one is meanwhile. */
export type Rail = 'on' | 'gap' | undefined

type Content =
  | { readonly kind: 'head'; readonly name: string; readonly isBack: boolean }
  | { readonly kind: 'statement'; readonly line: StatementLine }
  | Folded
  | { readonly kind: 'event' | 'fault'; readonly text: string }

/** Where it stands: `run` has one lane, and all recoveries, of which only one is ever there, another. */
interface Standing {
  /** The instance: `run`, `recovery 2`. */
  readonly owner: string
  /** 0: run; 1: recovery. */
  readonly lane: 0 | 1
  /** Which of the colors. */
  readonly color: number
}

export type TaleRow = Content & Standing & { readonly rails: readonly [Rail, Rail] }

/** As many as recoveries have; the first is that of `run`. */
const RECOVERY_COLORS = 5

/**
 * A story in rows, with a head wherever another instance goes on.
 *
 * @param usual what a run without a fault did: a long stretch of the very same is folded, so that the fault is in sight
 */
export function layOutTale(story: readonly StoryLine[], usual: readonly string[] = []): readonly TaleRow[] {
  const rows = withHeads(fold(story, usual))
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

function withHeads(told: readonly Told[]): readonly (Content & Standing)[] {
  const rows: (Content & Standing)[] = []
  const seen = new Set<string>()
  let owner = ''
  for (const line of told) {
    const next = 'who' in line ? actorOf(line.who) : owner
    if (next !== owner) {
      owner = next
      rows.push({ ...standingOf(owner), kind: 'head', name: owner, isBack: seen.has(owner) })
      seen.add(owner)
    }
    rows.push({ ...standingOf(owner), ...contentOf(line) })
  }
  return rows
}

function contentOf(line: Told): Content {
  if (line.kind === 'statement') return { kind: 'statement', line }
  return line.kind === 'folded' ? line : { kind: line.isFault ? 'fault' : 'event', text: line.text }
}

function standingOf(owner: string): Standing {
  const number = Number(/^recovery (\d+)$/.exec(owner)?.[1] ?? 0)
  return {
    owner,
    lane: number > 0 ? 1 : 0,
    color: number > 0 ? 1 + ((number - 1) % RECOVERY_COLORS) : 0,
  }
}
