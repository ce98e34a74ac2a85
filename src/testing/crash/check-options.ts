import { InvalidInputError } from '../../errors.js'
import { showGiven } from '../../options/name-given.js'
import { wholeNumber } from '../../options/number-options.js'
import { checked, required } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import { boolean, func } from '../../options/value-options.js'
import { currentActor } from '../gate/actor.js'
import { checkTarget, sharedOptions } from '../shared-options.js'
import { RecordedEffects } from './effects.js'
import { decodeFault, MODES } from './fault.js'
import type { CrashBound, CrashLoopOptions } from './options.js'

/** The classes 00 to 02 of SQLSTATE are no errors. */
const SQLSTATE = /^(?!0[0-2])[0-9A-Z]{5}$/

/** A check for a list that is not empty. */
const listOf =
  (what: string, isRight: (one: unknown) => boolean) =>
  (field: string, value: unknown): void => {
    if (Array.isArray(value) && value.length > 0 && value.every(isRight)) return
    throw new InvalidInputError(field, `must be a list of ${what}, not ${showGiven(value)}`)
  }

const checkEffects = (field: string, value: unknown): void => {
  if (!(value instanceof RecordedEffects))
    throw new InvalidInputError(field, `must be what recordEffects() returns, not ${showGiven(value)}`)
}

export const crashBounds = optionTable<CrashBound>()('crashLoop: bound', {
  recoveries: wholeNumber({ mayBeInfinite: true }),
  statements: wholeNumber({ mayBeInfinite: true }),
  processPoints: wholeNumber({ mayBeInfinite: true }),
})

export const crashLoopOptions = optionTable<CrashLoopOptions>()('crashLoop', {
  ...sharedOptions,
  run: required(func()),
  recover: func(),
  advance: func(),
  progress: func(),
  invariant: func(),
  effects: checked(checkEffects),
  modes: checked(listOf(MODES.join(', '), (mode) => MODES.includes(mode as never))),
  errors: checked(listOf('SQLSTATEs', (code) => typeof code === 'string' && SQLSTATE.test(code))),
  duringRecovery: boolean(),
  mayWait: boolean(),
  mayWriteLate: func(),
  child: func(),
  bound: checked((field, value) => crashBounds.read(value as CrashBound, field)),
})

export function checkOptions(options: CrashLoopOptions): void {
  if (currentActor())
    throw new InvalidInputError(
      'run',
      'must not crash itself: this call comes from within an exploration or a crash loop',
    )
  crashLoopOptions.read(options)
  checkTarget(options)
  const { progress, invariant, effects, modes, child, duringRecovery } = options
  if (!progress && !invariant && !effects)
    throw new InvalidInputError(
      'invariant',
      'or `progress` or `effects` must be given: else nothing is judged',
    )
  if (modes?.includes('process') && !child) throw childMissing()
  if (duringRecovery && modes && !modes.includes('crash'))
    throw new InvalidInputError('duringRecovery', 'goes with mode `crash`, which is not among the modes')
}

/** Separate from the other checks, because `DIBS_REPLAY` may be for another loop. */
export function checkReplay({ replay, child }: CrashLoopOptions): void {
  if (replay !== undefined && decodeFault(replay)?.mode === 'process' && !child) throw childMissing()
}

const childMissing = (): InvalidInputError =>
  new InvalidInputError('child', 'must be given for mode `process`: it starts the program as a process')
