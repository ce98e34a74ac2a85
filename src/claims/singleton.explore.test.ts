import { describeSingletonSchedules } from '../../test/claims/explore-singleton.js'

/** More preemptions are for `npm run soak`. */
describeSingletonSchedules((preemptions) => ({ preemptions, schedules: 5_000 }))
