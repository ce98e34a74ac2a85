import { ExplorationError } from '../../errors.js'
import { withTimeout } from '../../postgres/with-timeout.js'
import { errorOf, isWrite } from '../explore/search/failure.js'
import type { Actor } from '../gate/actor.js'
import type { Child } from './child.js'
import { count } from './count.js'
import type { Rest, Struck } from './driver.js'
import { holdLocks, idleLimit } from './held-locks.js'
import type { Instance } from './instance.js'
import type { LateWrite, LateWrites } from './late-writes.js'
import type { CrashLoopOptions } from './options.js'
import type { Scene } from './scene.js'

/** What the fault has left behind. */
export type LeftBehind =
  /** The process is gone, and the server does not know. */
  | { readonly kind: 'ghost'; readonly instance: Instance }
  /** The process stands still. */
  | {
      readonly kind: 'sleeper'
      readonly instance: Instance
      readonly struck: Struck
      readonly late: LateWrites | undefined
      readonly child: Child | undefined
    }

type Sleeper = Extract<LeftBehind, { kind: 'sleeper' }>
type Blocked = Extract<Rest, { kind: 'blocked' }>

const DEFAULT_RECOVERIES = 3
/** How often to look whether `advance` waits for somebody. */
const LOOK_MS = 100

/** Fresh instances, one after the other, until all is done; and what becomes of the one that was left behind. */
export class Recovery {
  /** One of them crashed too, as it should. */
  isCrashed = false
  /** Whom they had to wait for. */
  waited: string | undefined
  /** What the sleeper has written over when it woke up. */
  lateWrites: readonly LateWrite[] = []
  readonly #scene: Scene
  #left: LeftBehind | undefined
  /** Nothing but the server's patience would have ended the wait. */
  #isUnbounded = false
  /** Statements so far. */
  #statements = 0

  constructor(scene: Scene, left: LeftBehind | undefined) {
    this.#scene = scene
    this.#left = left
  }

  async run(): Promise<void> {
    const { options, story, fault } = this.#scene
    const { bound, advance } = options
    const most = (bound?.recoveries ?? DEFAULT_RECOVERIES) + (fault?.again ? 1 : 0)
    for (let n = 1; n <= most; n++) {
      if (n > 1 && advance) {
        story.tell('time moves past the leases')
        await this.#advance(advance)
        if (this.#scene.failure) return
      }
      await this.once()
      // Past the lease, if there is one, somebody else must have been able to take over.
      const isPast = n > 1 || !advance || n === most
      const isDone = !this.#scene.failure && (await this.#isDone(isPast))
      if (this.#scene.failure || (isDone && this.#left === undefined)) return
    }
    const last = this.#scene.recoveries.at(-1)
    const why = last?.status === 'rejected' ? ` The last one failed: ${errorOf(last.reason).message}.` : ''
    const still = advance ? '' : ' Time stood still meanwhile: there is no `advance`.'
    this.#scene.fail('progress', `Not all is done after ${count(most, 'recovery')}.${why}${still}`)
  }

  /** One fresh instance. */
  async once(): Promise<void> {
    const { stage, driver, recoveries } = this.#scene
    const again = this.isCrashed ? undefined : this.#scene.fault?.again
    await stage.cast.kill(this.#scene.actor('recovery'))
    const instance = this.#scene.startRecovery(
      again && { side: again.side, statement: again.statement - this.#statements },
    )
    await this.#follow(await driver.drive([instance]), instance)
    this.#statements += instance.statements
    recoveries[recoveries.length - 1] = instance.outcome
  }

  /** It may wait for a lock of the one that was left behind, who is noticed then, or goes on. */
  async #advance(advance: NonNullable<CrashLoopOptions['advance']>): Promise<void> {
    const { stage, story } = this.#scene
    let isOver = false
    const moving = stage.advance(advance).finally(() => {
      isOver = true
    })
    moving.catch(() => {}) // awaited below
    const until = performance.now() + this.#scene.patienceMs
    while (!isOver) {
      await withTimeout(moving, LOOK_MS, () => {})
      if (isOver) break
      if (!(await this.#isBlockedByLeft(stage.cast.setup.actor))) {
        if (performance.now() > until) throw this.#stalled()
        continue
      }
      this.waited ??= '`advance` waits for run'
      story.tell('`advance` waits for run')
      if (this.#left?.kind === 'sleeper') await this.#wake(this.#left, undefined)
      else if (this.#left) await this.#notice(this.#left.instance, true)
    }
    await moving
  }

  #stalled(): ExplorationError {
    return new ExplorationError(
      `\`advance\` has not come to its end in ${this.#scene.patienceMs} ms. Does somebody hold a lock that it wants? Raise patienceMs if it only takes its time.`,
      'advance',
    )
  }

  async #isBlockedByLeft({ sessions }: Actor): Promise<boolean> {
    const theirs = [...(this.#left?.instance.actor.sessions ?? [])].map(({ pid }) => pid)
    const waits = await this.#scene.stage.probe.look(
      [...sessions].map(({ pid }) => pid),
      theirs,
    )
    return [...waits.values()].some(({ by }) => by.some((pid) => theirs.includes(pid)))
  }

  async #follow(rest: Rest, instance: Instance): Promise<void> {
    switch (rest.kind) {
      case 'ended':
        return this.#scene.tellEnd(instance)
      case 'died':
        return this.#scene.bury(instance)
      case 'struck':
        this.isCrashed = true
        this.#scene.story.tellFault('the process is killed')
        return this.#scene.kill(instance)
      case 'blocked':
        if (this.#left) return this.#unblock(rest, instance, this.#left)
    }
    const ended = rest.kind === 'blocked' ? '\n`run` has ended and left its transaction open.' : ''
    this.#scene.fail('stuck', `${instance.name} hangs: ${rest.message}${ended}`)
  }

  /** All is done, as far as that can be with somebody left behind, who now goes on or is noticed. */
  async #isDone(isPast: boolean): Promise<boolean> {
    if (this.#left?.kind === 'sleeper' && isPast) await this.#wake(this.#left, undefined)
    if (this.#scene.failure) return false
    const isDone = await this.#hasProgressed()
    if (this.#left?.kind === 'ghost' && isPast) {
      const held = await this.#notice(this.#left.instance, isDone)
      // Nobody has said what is to be done, and what was locked may have been passed by: one more has a look.
      if (held && !this.#scene.options.progress) return false
    }
    if (isDone && this.#isUnbounded && this.#scene.options.mayWait === false)
      this.#scene.fail('waited', `${this.waited}.`)
    return isDone
  }

  /** It waits for the one that was left behind. */
  async #unblock({ by, message }: Blocked, instance: Instance, left: LeftBehind): Promise<void> {
    const limit = await idleLimit(by)
    this.waited ??= message
    const isGone = left.kind === 'ghost'
    if (this.#scene.options.mayWait === false && limit === undefined) {
      const who = isGone ? 'which is gone; the server may take hours to notice' : 'which stands still'
      return this.#scene.fail('waited', `${message}\nIt waits for \`run\`, ${who}.`)
    }
    if (left.kind === 'sleeper') return this.#wake(left, instance)
    this.#left = undefined
    this.#scene.story.tell(
      limit ? `the server ends the transaction after ${limit}` : 'the server notices that run is gone',
    )
    await this.#scene.kill(left.instance)
    await this.#follow(await this.#scene.driver.drive([instance]), instance)
  }

  /** Nobody waited for it; now the server notices. @returns it held locks */
  async #notice(ghost: Instance, isDone: boolean): Promise<boolean> {
    this.#left = undefined
    this.#scene.story.tell('the server notices that run is gone')
    const sessions = [...ghost.actor.sessions]
    const held = await holdLocks(this.#scene.stage, sessions)
    if (!isDone && held) {
      this.waited = 'recovery could not finish before the server noticed that run was gone'
      this.#isUnbounded = (await idleLimit(sessions)) === undefined
    }
    await this.#scene.kill(ghost)
    return held
  }

  /** The sleeper goes on, and whoever waits for it goes on after it. */
  async #wake(sleeper: Sleeper, waiting: Instance | undefined): Promise<void> {
    const { driver, story, options } = this.#scene
    const { instance, struck, late, child } = sleeper
    this.#left = undefined
    await late?.note()
    story.tell('run wakes up and goes on')
    child?.goOn()
    instance.thaw()
    await driver.resume(struck)
    const rest = await driver.drive([instance])
    if (rest.kind === 'blocked' && waiting) return this.#goOnTogether([instance, waiting])
    await this.#followRun(rest, instance)
    if (this.#scene.failure) return
    const writes = (await late?.overwritten()) ?? []
    this.lateWrites = writes.filter((write) => !options.mayWriteLate?.(write))
    if (waiting) await this.#follow(await driver.drive([waiting]), waiting)
  }

  /** Each waits for the other: the server ends that. Who then wrote over whom cannot be told. */
  async #goOnTogether(instances: readonly Instance[]): Promise<void> {
    for (let left = instances; left.length > 0; ) {
      const rest = await this.#scene.driver.drive(left)
      if (rest.kind === 'ended') return left.forEach((one) => void this.#scene.tellEnd(one))
      if (rest.kind !== 'died' && rest.kind !== 'struck')
        return this.#scene.fail(
          'stuck',
          `${left.map(({ name }) => name).join(' and ')} hang: ${rest.message}`,
        )
      const { instance } = rest
      left = left.filter((one) => one !== instance)
      if (instance.actor.name === 'run') await this.#followRun(rest, instance)
      else await this.#follow(rest, instance)
    }
  }

  async #followRun(rest: Rest, run: Instance): Promise<void> {
    if (rest.kind === 'ended') return this.#scene.tellEnd(run)
    if (rest.kind === 'died') return this.#scene.bury(run)
    if (rest.kind !== 'struck') this.#scene.fail('stuck', `run hangs: ${rest.message}`)
  }

  async #hasProgressed(): Promise<boolean> {
    const { stage, recoveries, options } = this.#scene
    const { progress } = options
    if (!progress) return recoveries.at(-1)?.status === 'fulfilled'
    try {
      return Boolean(await stage.judge((db) => progress(db), 'progress'))
    } catch (error) {
      if (error instanceof ExplorationError) throw error
      if (isWrite(error))
        throw new ExplorationError(
          `\`progress\` tried to change data: ${errorOf(error).message}. It may only look.`,
          'progress',
          undefined,
          { cause: error },
        )
      return false // an assertion that does not hold yet
    }
  }
}
