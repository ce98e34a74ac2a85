import { InvalidInputError } from '../../errors.js'
import { BOOLEAN, COMMON, checkBounds, checkGiven, FUNCTION, type Kind } from '../check-given.js'
import { currentActor } from '../gate/actor.js'
import { RecordedEffects } from './effects.js'
import { decodeFault, MODES } from './fault.js'
import type { CrashLoopOptions } from './options.js'

/** Classes 00 to 02 are no errors. */
const SQLSTATE = /^(?!0[0-2])[0-9A-Z]{5}$/

const KINDS: Readonly<Record<keyof CrashLoopOptions, Kind>> = {
  ...COMMON,
  run: FUNCTION,
  recover: FUNCTION,
  advance: FUNCTION,
  progress: FUNCTION,
  effects: [(value) => value instanceof RecordedEffects, 'what recordEffects() returns'],
  modes: [
    (value) => isListOf(value, (mode) => MODES.includes(mode as never)),
    `a list of ${MODES.join(', ')}`,
  ],
  errors: [
    (value) => isListOf(value, (code) => typeof code === 'string' && SQLSTATE.test(code)),
    'a list of SQLSTATEs',
  ],
  duringRecovery: BOOLEAN,
  mayWait: BOOLEAN,
  mayWriteLate: FUNCTION,
  child: FUNCTION,
}

const isListOf = (value: unknown, isRight: (one: unknown) => boolean): boolean =>
  Array.isArray(value) && value.length > 0 && value.every(isRight)

export function checkOptions(options: CrashLoopOptions): void {
  if (currentActor())
    throw new InvalidInputError(
      'run',
      'must not crash itself: this call comes from within an exploration or a crash loop',
    )
  checkGiven(options, { of: 'crashLoop', kinds: KINDS })
  const { run, progress, invariant, effects, modes, child, duringRecovery } = options
  if (typeof run !== 'function') throw new InvalidInputError('run', 'must be given: the program under test')
  if (!progress && !invariant && !effects)
    throw new InvalidInputError(
      'invariant',
      'or `progress` or `effects` must be given: else nothing is judged',
    )
  checkBounds(options.bound, { recoveries: 1, statements: 1, processPoints: 1 })
  if (modes?.includes('process') && !child) throw childMissing()
  if (duringRecovery && modes && !modes.includes('crash'))
    throw new InvalidInputError('duringRecovery', 'goes with mode `crash`, which is not among the modes')
}

/** Apart from the other options, because `DIBS_REPLAY` may be for another loop. */
export function checkReplay({ replay, child }: CrashLoopOptions): void {
  if (replay !== undefined && decodeFault(replay)?.mode === 'process' && !child) throw childMissing()
}

const childMissing = (): InvalidInputError =>
  new InvalidInputError('child', 'must be given for mode `process`: it starts the program as a process')
