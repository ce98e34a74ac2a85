import { describeOnceSchedules } from '../../test/claims/explore-once.js'

/** More preemptions, and all schedules of most, are for `npm run soak`. */
describeOnceSchedules((preemptions) => ({ preemptions, schedules: 5_000 }))
