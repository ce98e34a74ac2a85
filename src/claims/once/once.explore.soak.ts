import { describeOnceSchedules } from '../../../test/claims/explore-once.js'

describeOnceSchedules((preemptions) => ({ preemptions: preemptions + 2, schedules: 200_000 }), {
  hasTime: true,
})
