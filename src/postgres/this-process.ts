import { hostname } from 'node:os'
import { dateFromMicros } from './text-values.js'

/** Who it is, for those who look at what is held, and by whom. */
export const THIS_PROCESS = `${hostname()}:${process.pid}`

/** The readable part of a holder's identity: calls append a UUID, so that no two of them have the same. */
export const nameHolder = (holder: string): string =>
  holder.replace(/[/:][0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/, '')

/** The holder of a claim that rests before its next attempt. */
const NOBODY = 'nobody'

/** The holder of a claim and the end of its lease, as the SQL functions of Dibs return them. */
interface ToldHolder {
  readonly holder?: string | null | undefined
  /** Microseconds since 1970. Without it, nobody holds a lease: the holder is the last one, or an open transaction. */
  readonly leaseUntil?: number | null | undefined
}

/** The holder of a lease and its end, for an error or a result. Empty if nobody holds a lease. */
export const readHeld = ({
  holder,
  leaseUntil,
}: ToldHolder): { readonly holder: string; readonly leaseUntil: Date } | Record<string, never> =>
  holder && holder !== NOBODY && leaseUntil
    ? { holder: nameHolder(holder), leaseUntil: dateFromMicros(String(leaseUntil)) }
    : {}
