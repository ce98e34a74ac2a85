import { LockHeldError } from '../../errors.js'
import { readHeld } from '../../postgres/this-process.js'
import { LockClaim } from './acquire-claims.js'
import { type AcquireKind, RETRY_MS } from './acquire-kind.js'

export const lockKind: AcquireKind<'lock'> = {
  type: LockClaim,
  duplicate: 'is in the list already',
  storesOutcome: false,
  hasFence: true,
  recognizesRepeat: true,

  nameOf: ({ name }) => name,
  describe: ({ name }) => `lock "${name}"`,
  keepsFailure: () => false,
  queueKey: () => undefined,
  lockOf: ({ name }) => name,

  item: ({ name }) => ({ name }),
  explain: ({ name }, { lock }) => new LockHeldError(name, lock?.leftMs ?? RETRY_MS, readHeld(lock ?? {})),
  grant: ({ name }, { lock }) => ({ name, fence: Number(lock?.fence) }),
  leftMs: ({ lock }) => lock?.leftMs,
  endJoined: () => undefined,
  endLeased: ({ name }, { lock }) => ({ kind: 'lock', name, fence: lock?.fence }),
}
