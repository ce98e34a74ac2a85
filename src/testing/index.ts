export { fastSettings } from '../postgres/embedded/settings.js'
export { countTraffic, type Traffic } from './count-traffic.js'
export type {
  BandwidthFault,
  BlackHoleFault,
  CutFault,
  Direction,
  Fault,
  HealFault,
  Injection,
  LatencyFault,
  RefuseFault,
  ResetFault,
  ScriptedFault,
  Strike,
} from './proxy/fault.js'
export type { ProxyEvent } from './proxy/history.js'
export { PgProxy, type PgProxyOptions } from './proxy/pg-proxy.js'
export { seededRandom } from './seeded-random.js'
export type { TestClock } from './test-clock.js'
export { createTestSchema, type TestSchema } from './test-schema.js'
