import { describe } from 'vitest'
import { describeFlightSchedules } from '../../test/single-flight/explore-flights.js'

describe('single-flight', () =>
  describeFlightSchedules((preemptions) => ({ preemptions: preemptions + 1, schedules: 200_000 })))
