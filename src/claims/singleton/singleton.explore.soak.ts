import { describeSingletonSchedules } from '../../../test/claims/explore-singleton.js'

describeSingletonSchedules((preemptions) => ({ preemptions: preemptions + 2, schedules: 200_000 }))
