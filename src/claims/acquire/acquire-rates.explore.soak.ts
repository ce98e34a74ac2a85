import { describeRateSchedules } from '../../../test/claims/explore-acquire-rates.js'

describeRateSchedules((preemptions) => ({ preemptions: preemptions + 1, schedules: 200_000 }), {
  hasTime: true,
})
