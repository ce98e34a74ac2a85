import { describeQuotaSchedules } from '../../../test/claims/explore-quota.js'

describeQuotaSchedules((actors) => ({ ...(actors === 2 ? {} : { preemptions: 2 }), schedules: 200_000 }), {
  hasTime: true,
})
