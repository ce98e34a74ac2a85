import { ExplorationError } from '../../errors.js'
import { errorOf, isWrite, violationOf } from '../explore/search/failure.js'
import type { Stage } from '../explore/stage/stage.js'
import { type Actor, currentActor, type Outcome } from '../gate/actor.js'
import type { GatedSession } from '../gate/gated-session.js'
import { Child } from './child.js'
import { count } from './count.js'
import { Driver, type Rest } from './driver.js'
import type { Fault, Place } from './fault.js'
import { endsConnection, injectedError } from './injected-errors.js'
import { Instance } from './instance.js'
import { type LateWrite, LateWrites } from './late-writes.js'
import type { CrashHandle, CrashInstance, CrashLoopOptions } from './options.js'
import type { CrashableServer } from './server-crash.js'
import { type StatementLine, Story, type StoryLine } from './story.js'

/** What went wrong in a run. */
export interface CrashFailure {
  /**
   * `stuck`: an instance hangs; `late write`: a zombie wrote over what another has written; `repeated effect`;
   * `invariant`; `progress`: something was left undone; `waited`: for a process that is gone or asleep; `failed`: `run`
   * failed with nothing done to it.
   */
  readonly kind: 'stuck' | 'late write' | 'repeated effect' | 'invariant' | 'progress' | 'waited' | 'failed'
  readonly message: string
}

/** One run with one fault, or with none. */
export interface RunRecord {
  readonly fault: Fault | undefined
  /** The run came to the place of its fault. */
  readonly isReached: boolean
  /** And the recovery to that of the second. */
  readonly isReachedAgain: boolean
  /** The statement at which it was. */
  readonly line: StatementLine | undefined
  readonly story: readonly StoryLine[]
  readonly run: 'fulfilled' | 'rejected' | 'died' | 'hangs'
  /** How many times `recover` was started. */
  readonly recoveries: number
  /** Whom recovery had to wait for. */
  readonly waited: string | undefined
  readonly lateWrites: readonly LateWrite[]
  /** Effects that took place more than once. */
  readonly repeated: readonly string[]
  readonly failure: CrashFailure | undefined
}

export interface CrashRunOptions {
  readonly stage: Stage
  readonly options: CrashLoopOptions
  readonly fault: Fault | undefined
  /** For mode `server`. */
  readonly server: CrashableServer | undefined
}

const DEFAULT_RECOVERIES = 3
const DEFAULT_STATEMENTS = 500
const DEFAULT_PATIENCE_MS = 5_000

/** Runs the program once, does something to it, lets it recover, and judges what is left. */
export class CrashRun {
  readonly #stage: Stage
  readonly #options: CrashLoopOptions
  readonly #fault: Fault | undefined
  readonly #server: CrashableServer | undefined
  readonly #story = new Story()
  readonly #driver: Driver
  readonly #recoveries: (Outcome | undefined)[] = []
  #run: Instance | undefined
  #child: Child | undefined
  #line: StatementLine | undefined
  #isReachedAgain = false
  #told: Outcome | undefined
  /** The process is gone and the server does not know, or it stands still. */
  #left: 'ghost' | 'sleeper' | undefined
  #struck: Extract<Rest, { kind: 'struck' }> | undefined
  #late: LateWrites | undefined
  #lateWrites: readonly LateWrite[] = []
  #waited: string | undefined
  /** And nothing but the server's patience would have ended that. */
  #isUnbounded = false
  #failure: CrashFailure | undefined
  /** Statements of recoveries before the one that runs. */
  #recovered = 0

  constructor({ stage, options, fault, server }: CrashRunOptions) {
    this.#stage = stage
    this.#options = options
    this.#fault = fault
    this.#server = server
    this.#driver = new Driver({
      stage,
      story: this.#story,
      patienceMs: options.patienceMs ?? DEFAULT_PATIENCE_MS,
      maxStatements: options.bound?.statements ?? DEFAULT_STATEMENTS,
    })
  }

  async run(): Promise<RunRecord> {
    await this.#begin()
    try {
      this.#run = this.#start(
        'run',
        1,
        this.#fault?.mode === 'process' ? this.#playChild : this.#options.run,
        this.#fault,
      )
      await this.#follow(await this.#driver.drive([this.#run]), this.#run)
      if (!this.#failure) await this.#recover()
      this.#stage.end()
      if (!this.#failure) await this.#judge()
    } finally {
      await this.#child?.kill()
    }
    return this.#record()
  }

  /** What `recover` does where nothing was run before: to know it again. */
  async recoverAlone(): Promise<readonly StoryLine[]> {
    await this.#begin()
    await this.#startRecovery(1)
    this.#stage.end()
    return this.#story.lines
  }

  async #begin(): Promise<void> {
    await this.#stage.begin()
    this.#options.effects?.clear((what) => this.#story.tell(`${this.#nameOf(currentActor())}: ${what}`))
  }

  #actor(name: 'run' | 'recovery'): Actor {
    return this.#stage.actors.find((actor) => actor.name === name) as Actor
  }

  #nameOf(actor: Actor | undefined): string {
    return actor?.name === 'recovery' ? `recovery ${this.#recoveries.length}` : (actor?.name ?? 'somebody')
  }

  #start(
    name: string,
    number: number,
    fn: (db: CrashHandle, instance: CrashInstance) => unknown,
    target: Place | undefined,
  ): Instance {
    const actor = this.#actor(number === 1 ? 'run' : 'recovery')
    const instance = new Instance({
      actor,
      pool: this.#stage.cast.poolOf(actor),
      name,
      number,
      fn,
      target,
      onChange: () => this.#stage.quiescence.touch(),
    })
    instance.start()
    return instance
  }

  readonly #playChild = async (db: CrashHandle): Promise<void> => {
    const start = this.#options.child as (url: string) => ReturnType<NonNullable<CrashLoopOptions['child']>>
    this.#child = new Child(() => start(db.url))
    await this.#child.ended()
  }

  /** What becomes of `run` from where it came to rest. */
  async #follow(rest: Rest, instance: Instance): Promise<void> {
    switch (rest.kind) {
      case 'struck':
        return this.#strike(rest)
      case 'died':
        this.#story.tellEnd(instance.name, 'dies by itself')
        return this.#kill(instance)
      case 'ended':
        this.#told = instance.outcome
        return this.#tellEnd(instance)
      case 'blocked':
      case 'stuck':
        this.#failure = { kind: 'stuck', message: `${instance.name} hangs: ${rest.message}` }
    }
  }

  #tellEnd({ name, outcome, actor }: Instance): void {
    if (outcome?.status !== 'rejected') return
    // What could not be carried out says nothing about the code.
    if (outcome.reason instanceof ExplorationError) throw outcome.reason
    this.#story.tellEnd(name, `fails: ${errorOf(outcome.reason).message}`)
    if (this.#fault === undefined && actor.name === 'run')
      this.#failure = {
        kind: 'failed',
        message: `\`run\` failed with nothing done to it: ${errorOf(outcome.reason).message}`,
      }
  }

  async #kill(instance: Instance): Promise<void> {
    this.#driver.forget(instance)
    await this.#stage.cast.kill(instance.actor)
  }

  async #strike(struck: Extract<Rest, { kind: 'struck' }>): Promise<void> {
    const { instance, session, line } = struck
    const { mode, side, code = '', signal } = this.#fault as Fault
    this.#line = line
    instance.target = undefined
    switch (mode) {
      case 'crash':
        this.#story.tellFault('the process is killed')
        return this.#kill(instance)
      case 'half-open':
        this.#story.tellFault('the process is gone, and the server has not noticed')
        this.#left = 'ghost'
        this.#driver.forget(instance)
        return instance.freeze()
      case 'error':
        return this.#inject(code, side, struck)
      case 'server':
        this.#story.tellFault('the server is shut down at once, and comes back')
        this.#driver.forget(instance)
        await this.#server?.crash(this.#stage)
        return this.#follow(await this.#driver.drive([instance]), instance)
      case 'process':
        if (signal === 'SIGSTOP') break
        this.#story.tellFault('the process is killed')
        this.#driver.forget(instance)
        await this.#child?.kill()
        return this.#kill(instance)
    }
    this.#story.tellFault('the process stands still')
    this.#child?.stop()
    instance.actor.frozen = []
    this.#left = 'sleeper'
    this.#struck = struck
    // Whoever has claimed nothing yet is not late, only slow to start.
    const hasClaimed = this.#story
      .statements((who) => who.startsWith('run'))
      .some(
        ({ commits, effect }) =>
          commits && (effect.kind === 'done' || effect.kind === 'unseen') && !effect.result.error,
      )
    if (hasClaimed || session.holdsLocks) this.#late = await LateWrites.watch(this.#stage)
  }

  async #inject(
    code: string,
    side: Place['side'],
    { instance, session, line }: Extract<Rest, { kind: 'struck' }>,
  ): Promise<void> {
    const error = injectedError(code)
    this.#driver.forget(instance)
    this.#story.tellFault(
      side === 'before'
        ? `the statement fails with ${code}`
        : `the connection ends with ${code} before the answer is seen`,
    )
    if (side === 'before') line.effect = { kind: 'injected', ...error }
    if (endsConnection(code)) session.cut(error)
    else session.refuse(error)
    return this.#follow(await this.#driver.drive([instance]), instance)
  }

  async #recover(): Promise<void> {
    const { bound, advance } = this.#options
    const most = (bound?.recoveries ?? DEFAULT_RECOVERIES) + (this.#fault?.again ? 1 : 0)
    for (let n = 1; n <= most && !this.#failure; n++) {
      if (n > 1 && advance) {
        this.#story.tell('time moves past the leases')
        await this.#stage.advance(advance)
      }
      await this.#startRecovery(n)
      if (this.#failure) return
      // Past the lease, if there is one, somebody else must have been able to take over.
      const isPast = n > 1 || !advance || n === most
      if (this.#left === 'sleeper' && isPast) await this.#wake([])
      if (this.#failure) return
      const isDone = await this.#hasProgressed()
      if (this.#left === 'ghost' && isPast) await this.#notice(isDone)
      if (!isDone || this.#left !== undefined) continue
      if (this.#isUnbounded && this.#options.mayWait === false)
        this.#failure = { kind: 'waited', message: `${this.#waited}.` }
      return
    }
    if (this.#failure) return
    const last = this.#recoveries.at(-1)
    const why = last?.status === 'rejected' ? ` The last one failed: ${errorOf(last.reason).message}.` : ''
    this.#failure = {
      kind: 'progress',
      message: `Not all is done after ${count(this.#recoveries.length, 'recovery')}.${why}`,
    }
  }

  async #startRecovery(n: number): Promise<void> {
    const { recover, run } = this.#options
    const again = this.#isReachedAgain ? undefined : this.#fault?.again
    const target = again && { side: again.side, statement: again.statement - this.#recovered }
    await this.#stage.cast.kill(this.#actor('recovery'))
    this.#recoveries.push(undefined)
    const instance = this.#start(`recovery ${n}`, n + 1, recover ?? run, target)
    await this.#followRecovery(await this.#driver.drive([instance]), instance)
    this.#recovered += instance.statements
    this.#recoveries[n - 1] = instance.outcome
  }

  async #followRecovery(rest: Rest, instance: Instance): Promise<void> {
    switch (rest.kind) {
      case 'ended':
        return this.#tellEnd(instance)
      case 'died':
        this.#story.tellEnd(instance.name, 'dies by itself')
        return this.#kill(instance)
      case 'struck':
        this.#isReachedAgain = true
        this.#story.tellFault('the process is killed')
        return this.#kill(instance)
      case 'blocked':
        if (this.#left) return this.#unblock(rest, instance)
    }
    const ended = rest.kind === 'blocked' ? '\n`run` has ended and left its transaction open.' : ''
    this.#failure = { kind: 'stuck', message: `${instance.name} hangs: ${rest.message}${ended}` }
  }

  /** It waits for the process that is gone, or stands still. */
  async #unblock(
    { by, isBounded, message }: Extract<Rest, { kind: 'blocked' }>,
    instance: Instance,
  ): Promise<void> {
    const limit = await idleLimit(by)
    this.#waited ??= message
    if (this.#options.mayWait === false && limit === undefined && !isBounded) {
      const who =
        this.#left === 'ghost' ? 'which is gone; the server may take hours to notice' : 'which stands still'
      this.#failure = { kind: 'waited', message: `${message}\nIt waits for \`run\`, ${who}.` }
      return
    }
    if (this.#left === 'sleeper') return this.#wake([instance])
    this.#left = undefined
    this.#story.tell(
      limit ? `the server ends the transaction after ${limit}` : 'the server notices that run is gone',
    )
    await this.#kill(this.#run as Instance)
    await this.#followRecovery(await this.#driver.drive([instance]), instance)
  }

  /** Nobody waited for it; now the server notices. */
  async #notice(isDone: boolean): Promise<void> {
    this.#left = undefined
    this.#story.tell('the server notices that run is gone')
    const sessions = [...this.#actor('run').sessions]
    if (!isDone && (await this.#holdLocks(sessions))) {
      this.#waited = 'recovery could not finish before the server noticed that run was gone'
      this.#isUnbounded = (await idleLimit(sessions)) === undefined
    }
    await this.#kill(this.#run as Instance)
  }

  async #holdLocks(sessions: readonly GatedSession[]): Promise<boolean> {
    const pids = sessions.map(({ pid }) => pid).join()
    const held = await this.#stage.ask(
      `select from pg_catalog.pg_locks where pid = any ('{${pids}}') and granted and locktype <> 'virtualxid'`,
    )
    return held.length > 0
  }

  /** The sleeper goes on; those who wait for it go on after it. */
  async #wake(waiting: readonly Instance[]): Promise<void> {
    const { instance } = this.#struck as Extract<Rest, { kind: 'struck' }>
    this.#left = undefined
    await this.#late?.note()
    this.#story.tell('run wakes up and goes on')
    this.#child?.goOn()
    const { frozen } = instance.actor
    instance.actor.frozen = undefined
    for (const fire of frozen ?? []) fire()
    await this.#driver.resume(this.#struck as Extract<Rest, { kind: 'struck' }>)
    const rest = await this.#driver.drive([instance])
    // Each waits for the other: then both go on, and who wrote over whom cannot be told.
    if (rest.kind === 'blocked') return this.#wakeBoth(instance, waiting)
    await this.#follow(rest, instance)
    if (this.#failure) return
    this.#lateWrites = ((await this.#late?.overwritten()) ?? []).filter(
      (write) => !this.#options.mayWriteLate?.(write),
    )
    for (const one of waiting) await this.#followRecovery(await this.#driver.drive([one]), one)
  }

  async #wakeBoth(instance: Instance, waiting: readonly Instance[]): Promise<void> {
    const rest = await this.#driver.drive([instance, ...waiting])
    if (rest.kind === 'ended') for (const one of waiting) this.#tellEnd(one)
    await this.#follow(rest, instance)
  }

  async #hasProgressed(): Promise<boolean> {
    const { progress } = this.#options
    if (!progress) return this.#recoveries.at(-1)?.status === 'fulfilled'
    try {
      return Boolean(await this.#stage.judge((db) => progress(db), 'progress'))
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

  async #judge(): Promise<void> {
    const { invariant, effects } = this.#options
    const told = { run: this.#told, recoveries: this.#recoveries, fault: this.#fault }
    const violation = invariant && (await violationOf(this.#stage, (db) => invariant(db, told)))
    const [write] = this.#lateWrites
    const [effect] = effects?.repeated ?? []
    if (effect)
      this.#failure = {
        kind: 'repeated effect',
        message: `${effect.name} took place ${effects?.count(effect.name, effect.key)} times for ${effect.key}.`,
      }
    else if (violation) this.#failure = { kind: 'invariant', message: violation.message }
    else if (write)
      this.#failure = {
        kind: 'late write',
        message: `After it woke up, run has written over what another had written meanwhile: ${write.table} ${JSON.stringify(write.row)}.`,
      }
  }

  #record(): RunRecord {
    const run = this.#run as Instance
    const repeated = (this.#options.effects?.repeated ?? []).map(({ name, key }) => `${name} ${key}`)
    return {
      fault: this.#fault,
      isReached: this.#line !== undefined,
      isReachedAgain: this.#isReachedAgain,
      line: this.#line,
      story: this.#story.lines,
      run: this.#told?.status ?? (this.#failure?.kind === 'stuck' && !run.hasDied ? 'hangs' : 'died'),
      recoveries: this.#recoveries.length,
      waited: this.#failure?.kind === 'progress' ? undefined : this.#waited,
      lateWrites: this.#lateWrites,
      repeated,
      failure: this.#failure,
    }
  }
}

/** After how long the server itself ends transactions like these, which stand still. */
async function idleLimit(sessions: readonly GatedSession[]): Promise<string | undefined> {
  for (const session of sessions) {
    if (session.status !== 'T' || session.state === 'running') continue
    const { rows } = await session.tell(
      `select pg_catalog.current_setting('idle_in_transaction_session_timeout'), pg_catalog.current_setting('transaction_timeout', true)`,
    )
    const limit = rows[0]?.find((value) => value !== null && value !== '' && value !== '0')
    if (limit) return limit
  }
  return undefined
}
