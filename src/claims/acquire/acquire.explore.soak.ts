import { describeAcquireSchedules } from '../../../test/claims/explore-acquire.js'

describeAcquireSchedules((preemptions) => ({ preemptions: preemptions + 2, schedules: 200_000 }))
