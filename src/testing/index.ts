export { fastSettings } from '../postgres/embedded/settings.js'
export type { Isolation } from '../postgres/transaction-types.js'
export { countTraffic, type Traffic } from './count-traffic.js'
export { crashLoop } from './crash/crash-loop.js'
export {
  type Effect,
  type RecordEffectsOptions,
  type RecordedEffects,
  recordEffects,
} from './crash/effects.js'
export type { CrashMode, Fault as CrashFault } from './crash/fault.js'
export type { LateWrite } from './crash/late-writes.js'
export type {
  CrashBound,
  CrashHandle,
  CrashInstance,
  CrashLoopOptions,
  CrashOutcome,
} from './crash/options.js'
export type { CrashPoint, CrashReport, RecoveryPath } from './crash/report/report.js'
export type { CrashFailure } from './crash/run-record.js'
export type { EventLine, StatementEffect, StatementLine, StoryLine } from './crash/story.js'
export { explore } from './explore/explore.js'
export type { ExploreBound, ExploreHandle, ExploreOptions } from './explore/options.js'
export type { StepLink } from './explore/report/links.js'
export type { ExploreReport, FoundRace, RandomPart, ReductionPart } from './explore/report/report.js'
export { type UntilBlockedOptions, untilBlocked } from './explore/schedule/until-blocked.js'
export type { Outcome } from './gate/actor.js'
export type { ProxyEvent } from './proxy/event-log.js'
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
export { PgProxy, type PgProxyOptions } from './proxy/pg-proxy.js'
export { reportPage } from './report-page.js'
export { seededRandom } from './seeded-random.js'
export type { TestClock } from './test-clock.js'
export { createTestSchema, type TestSchema } from './test-schema.js'
export type { TestWaits } from './test-waits.js'
