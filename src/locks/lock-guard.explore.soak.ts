import { describe } from 'vitest'
import { describeGuardSchedules } from '../../test/locks/explore-locks.js'

describe.each(['read committed', 'repeatable read', 'serializable'] as const)('guard at %s', (isolation) => {
  describeGuardSchedules((preemptions) => ({ preemptions: preemptions + 1, schedules: 200_000 }), isolation)
})
