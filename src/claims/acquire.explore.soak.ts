import { describeAcquireSchedules } from '../../test/claims/explore-acquire.js'

describeAcquireSchedules((preemptions) => ({ preemptions: preemptions + 1, schedules: 200_000 }))
