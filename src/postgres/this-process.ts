import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { dateFromMicros } from './text-values.js'

/** The name of this process as a holder, for operators. */
export const THIS_PROCESS = `${hostname()}:${process.pid}`

/** A holder that no other call has, so that a call recognizes its own claim if an answer of the server was lost. */
export const newHolder = (id: string = randomUUID()): string => `${THIS_PROCESS}:${id}`

/** The readable part of a holder: without the UUID that makes each call unique. */
export const nameHolder = (holder: string): string =>
  holder.replace(/[/:][0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/, '')

/** The holder of a claim that waits for its next attempt. */
const NOBODY = 'nobody'

/** The holder of a claim and the end of its lease, as the SQL functions of Dibs return them. */
interface StoredHolder {
  readonly holder?: string | null | undefined
  /** Microseconds since 1970. Missing if there is no lease: then `holder` is the last one, or an open transaction. */
  readonly leaseUntil?: number | null | undefined
}

/** The holder of a lease and its end, for an error or a result. Empty if there is no lease. */
export const readHeld = ({
  holder,
  leaseUntil,
}: StoredHolder): { readonly holder: string; readonly leaseUntil: Date } | Record<string, never> =>
  holder && holder !== NOBODY && leaseUntil
    ? { holder: nameHolder(holder), leaseUntil: dateFromMicros(String(leaseUntil)) } // guard: lock.database-clock
    : {}
