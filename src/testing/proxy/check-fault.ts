import { InvalidInputError } from '../../errors.js'
import type { Fault } from './fault.js'
import { statementPattern } from './statement-pattern.js'

const DIRECTIONS = ['toServer', 'toClient', 'both']
const KINDS = ['latency', 'bandwidth', 'black-hole', 'refuse', 'reset', 'cut', 'heal']
const HOWS = ['reset', 'close', 'black-hole', 'panic']
/** Longer than any test, and far from where timers overflow. */
export const MAX_MS = 3_600_000

/** Faults come from JSON as well, where no compiler has looked. */
export function checkFault(fault: Fault): void {
  expectOneOf('kind', fault.kind, KINDS)
  if ('direction' in fault) expectOneOf('direction', fault.direction ?? 'both', DIRECTIONS)
  switch (fault.kind) {
    case 'latency':
      expectNumber('delayMs', fault.delayMs, 0, MAX_MS)
      expectNumber('jitterMs', fault.jitterMs ?? 0, 0, MAX_MS)
      break
    case 'bandwidth':
      expectNumber('bytesPerSecond', fault.bytesPerSecond, 1, Number.MAX_SAFE_INTEGER)
      break
    case 'cut':
      expectOneOf('when', fault.when, ['before', 'after'])
      expectOneOf('how', fault.how ?? 'reset', HOWS)
      expectCount('nth', fault.nth ?? 1)
      if (fault.times !== 'always') expectCount('times', fault.times ?? 1)
      statementPattern(fault.statement)
  }
}

function expectOneOf(field: string, value: unknown, allowed: readonly string[]): void {
  if (allowed.includes(value as string)) return
  throw new InvalidInputError(field, `must be one of ${allowed.join(', ')}, not ${value}`)
}

export function expectNumber(field: string, value: unknown, min: number, max: number): void {
  if (typeof value === 'number' && value >= min && value <= max) return
  throw new InvalidInputError(field, `must be a number from ${min} to ${max}, not ${value}`)
}

function expectCount(field: string, value: unknown): void {
  if (Number.isSafeInteger(value) && Number(value) >= 1) return
  throw new InvalidInputError(field, `must be a whole number from 1, not ${value}`)
}
