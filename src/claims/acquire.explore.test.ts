import { describeAcquireSchedules } from '../../test/claims/explore-acquire.js'

/** More preemptions are for `npm run soak`. */
describeAcquireSchedules((preemptions) => ({ preemptions, schedules: 5_000 }))
