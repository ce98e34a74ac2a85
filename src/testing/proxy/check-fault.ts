import { number, wholeNumber } from '../../options/number-options.js'
import { checked, required } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import { checkOneOf, oneOf, string } from '../../options/value-options.js'
import type { BandwidthFault, BlackHoleFault, CutFault, Fault, LatencyFault } from './fault.js'
import { statementPattern } from './statement-pattern.js'

/** Longer than any test, and far below the longest timer. */
export const MAX_MS = 3_600_000

type OptionsOf<F> = Omit<F, 'kind'>

const direction = oneOf(['toServer', 'toClient', 'both'], { default: 'both' })

export const latencyOptions = optionTable<OptionsOf<LatencyFault>>()('proxy.inject: latency', {
  delayMs: required(number({ min: 0, max: MAX_MS })),
  jitterMs: number({ default: 0, min: 0, max: MAX_MS }),
  direction,
})

export const bandwidthOptions = optionTable<OptionsOf<BandwidthFault>>()('proxy.inject: bandwidth', {
  bytesPerSecond: required(number({ min: 1, max: Number.MAX_SAFE_INTEGER })),
  direction,
})

export const blackHoleOptions = optionTable<OptionsOf<BlackHoleFault>>()('proxy.inject: black-hole', {
  direction,
})

export const cutOptions = optionTable<OptionsOf<CutFault>>()('proxy.inject: cut', {
  when: required(oneOf(['before', 'after'])),
  statement: checked((_, value) => statementPattern(value)),
  nth: wholeNumber({ default: 1 }),
  times: checked((field, value) => value === 'always' || wholeNumber().check(field, value), { default: 1 }),
  how: oneOf(['reset', 'close', 'black-hole', 'panic'], { default: 'reset' }),
  severity: string(),
})

const withoutOptions = optionTable<object>()('proxy.inject: refuse, reset, heal', {})

const tables = {
  latency: latencyOptions,
  bandwidth: bandwidthOptions,
  'black-hole': blackHoleOptions,
  cut: cutOptions,
  refuse: withoutOptions,
  reset: withoutOptions,
  heal: withoutOptions,
}

/** Faults may come from JSON, which no compiler has checked. */
export function checkFault({ kind, ...options }: Fault): void {
  checkOneOf('kind', kind, Object.keys(tables))
  tables[kind].read(options as never)
}
