import { describeHoldSchedules } from '../../../test/claims/explore-holds.js'

describeHoldSchedules((preemptions) => ({ preemptions: preemptions + 1, schedules: 200_000 }), {
  hasTime: true,
})
