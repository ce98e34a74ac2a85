import { describeQuotaSchedules } from '../../test/claims/explore-quota.js'

/** All orders in which somebody is left once though they could go on. More, and all of two, are for `npm run soak`. */
describeQuotaSchedules(() => ({ preemptions: 1, schedules: 5_000 }))
