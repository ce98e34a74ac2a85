import { describeManySchedules } from '../../../test/claims/explore-quota-many.js'

describeManySchedules((preemptions) => ({ preemptions: preemptions + 1, schedules: 200_000 }))
