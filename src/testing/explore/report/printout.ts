import type { StepResult } from '../../gate/result.js'
import { countSwitches, type Effect, type TraceStep } from '../schedule/trace.js'
import type { Turn } from './report.js'

const MAX_TEXT = 78

/** A statement in one line, with its parameters in their places. */
export function showStatement(
  text: string,
  values: readonly (string | null)[],
  maxLength: number = MAX_TEXT,
): string {
  const flat = text.replace(/\s+/g, ' ').trim()
  const filled = flat.replace(/\$(\d+)/g, (placeholder, n) => {
    const value = values[Number(n) - 1]
    if (value === undefined) return placeholder
    return value === null ? 'null' : /^-?\d+(\.\d+)?$/.test(value) ? value : `'${clip(value, 24)}'`
  })
  return clip(filled, maxLength)
}

export const clip = (text: string, length: number): string =>
  text.length <= length ? text : `${text.slice(0, length - 1)}…`

const showValue = (value: string | null | undefined): string => (value === '' ? "''" : (value ?? 'null'))

export function showResult({ tag, rows, rowCount, isVoid, error }: StepResult): string {
  if (error) return `ERROR ${error.code} ${clip(error.message, 90)}`
  if (isVoid) return ''
  const [first] = rows
  if (rowCount === 1 && first)
    return clip(first.length === 1 ? showValue(first[0]) : `(${first.map(showValue).join(', ')})`, 40)
  const counted = /^(?:SELECT|UPDATE|DELETE|MERGE|COPY|INSERT \d+) (\d+)$/.exec(tag)?.[1]
  if (counted !== undefined) return counted === '1' ? '1 row' : `${counted} rows`
  return tag === 'COMMIT' || tag === 'ROLLBACK' ? '' : tag.toLowerCase()
}

function showEffect(effect: Effect): string {
  switch (effect.kind) {
    case 'done': {
      const shown = showResult(effect.result)
      return shown && `-> ${shown}`
    }
    case 'waits':
      return `.. waits for ${effect.for.join(' and ')}${effect.what ? ` (${effect.what})` : ''}`
    case 'point':
      return `-> stops at '${effect.name}'`
    case 'lost':
      return '-> its connection is gone'
  }
}

const resumes = (unit: string, effect: Effect): string => {
  if (effect.kind === 'waits') return `${unit} now waits for ${effect.for.join(' and ')}`
  const shown = effect.kind === 'done' ? showResult(effect.result) : showEffect(effect).slice(3)
  return `${unit} resumes${shown && `: ${shown}`}`
}

/** A schedule with one line per step. */
export function showSteps(steps: readonly TraceStep[], turn: Turn | undefined): string {
  const numbers = new Map<string, number>()
  const rows = steps.map((step) => {
    const number = (numbers.get(step.unit) ?? 0) + 1
    numbers.set(step.unit, number)
    return { ...step, number, shown: showStatement(step.text, step.values) }
  })
  const unitWidth = Math.max(0, ...rows.map(({ unit }) => unit.length))
  const textWidth = Math.max(0, ...rows.map(({ shown }) => shown.length))
  const lines = rows.map((row, i) => {
    const others = row.resumed.map(({ unit, effect }) => `-> ${resumes(unit, effect)}`)
    const pools = Object.entries(row.poolWaits).map(([actor, what]) => `.. ${actor} waits for ${what}`)
    const effect = [showEffect(row.effect), ...others, ...pools].filter(Boolean).join('  ')
    const mark = i === turn?.step ? `  <-- ${turn.text}` : ''
    const number = String(row.number).padStart(2)
    return `  ${row.unit.padEnd(unitWidth)} ${number}  ${row.shown.padEnd(textWidth)}  ${effect}${mark}`.trimEnd()
  })
  return lines.join('\n')
}

export function showSwitches(steps: readonly TraceStep[]): string {
  const switches = countSwitches(steps)
  return switches === 1 ? '1 switch' : `${switches} switches`
}
