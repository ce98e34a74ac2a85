import { hostname } from 'node:os'

/** Who it is, for those who look at what is held, and by whom. */
export const THIS_PROCESS = `${hostname()}:${process.pid}`

/** The readable part of a holder's identity: calls append a UUID, so that no two of them have the same. */
export const nameHolder = (holder: string): string =>
  holder.replace(/[/:][0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/, '')
