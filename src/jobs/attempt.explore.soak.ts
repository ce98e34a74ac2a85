import { describe } from 'vitest'
import { describeAttemptSchedules } from '../../test/jobs/explore-attempts.js'

describe('attempts', () =>
  describeAttemptSchedules((preemptions) => ({ preemptions: preemptions + 1, schedules: 200_000 })))
