import { acceptExplorer } from '../../../test/acceptance.js'

/** A hundred times in a row: `acceptance.soak.ts`. */
acceptExplorer(1)
