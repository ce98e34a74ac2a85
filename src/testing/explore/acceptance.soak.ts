import { acceptExplorer } from '../../../test/acceptance.js'

acceptExplorer(Number(process.env.SOAK_RUNS ?? 100))
