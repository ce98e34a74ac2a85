import { acceptCrashes } from './accept-crashes.js'

await acceptCrashes(Number(process.env.SOAK_RUNS ?? 20))
