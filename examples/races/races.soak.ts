import { acceptRaces } from './accept-races.js'

await acceptRaces(Number(process.env.SOAK_RUNS ?? 100))
