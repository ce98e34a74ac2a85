import { describe } from 'vitest'
import { describeLockSchedules } from '../../test/locks/explore-locks.js'

describe('locks', () =>
  describeLockSchedules((preemptions) => ({ preemptions: preemptions + 1, schedules: 200_000 })))
