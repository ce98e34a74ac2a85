import { acceptExplorer } from '../../../test/acceptance.js'

/** A hundred times in a row: `acceptance.soak.ts`. */
acceptExplorer(process.env.DIBS_TEST_ON ? 1 : 2)
