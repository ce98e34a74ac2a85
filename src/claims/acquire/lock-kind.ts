import { LockHeldError } from '../../errors.js'
import { SHORT_RETRY_MS } from '../../postgres/or-busy.js'
import { readHeld } from '../../postgres/this-process.js'
import { LockClaim } from './acquire-claims.js'
import type { AcquireKind } from './acquire-kind.js'

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
  explain: ({ name }, { lock }) =>
    new LockHeldError(name, lock?.leftMs ?? SHORT_RETRY_MS, readHeld(lock ?? {})),
  grant: ({ name }, { lock }) => ({ name, fence: Number(lock?.fence) }),
  leftMs: ({ lock }) => lock?.leftMs,
  endJoined: () => undefined,
  endLeased: ({ name }, { lock }) => ({ kind: 'lock', name, fence: lock?.fence }),
}
