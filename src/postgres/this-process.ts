import { hostname } from 'node:os'

/** Who it is, for those who look at what is held, and by whom. */
export const THIS_PROCESS = `${hostname()}:${process.pid}`
