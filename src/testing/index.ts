export { fastSettings } from '../postgres/embedded/settings.js'
export { countTraffic, type Traffic } from './count-traffic.js'
export type { TestClock } from './test-clock.js'
export { createTestSchema, type TestSchema } from './test-schema.js'
