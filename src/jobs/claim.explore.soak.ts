import { describe } from 'vitest'
import { describeClaimSchedules } from '../../test/jobs/explore-claims.js'

describe('claims', () =>
  describeClaimSchedules((preemptions) => ({ preemptions: preemptions + 1, schedules: 200_000 })))
