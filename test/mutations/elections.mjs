// Guards of elections and of the loop of maintenance.
const election = 'src/locks/election.ts'
const elected = ['src/locks/election.test.ts']
const loop = ['src/ops/maintenance.test.ts']

const elections = [
  [
    'what is done after a loss keeps everybody from being elected',
    '    await this.#drain(work)\n',
    '    await this.#drain(Promise.all([work, told]))\n',
    elected,
  ],
  ['a leader hands over before its work has ended', '    await this.#drain(work)\n', '', elected],
  [
    'a leader that is told to stop goes on',
    "    const resign = (): void => term.end('resigned')\n",
    '    const resign = (): void => {}\n',
    elected,
  ],
  [
    'work that hangs holds up the handover for ever',
    'const endsAt = Math.min(mostAt, this.#drainedAt)',
    'const endsAt = mostAt',
    elected,
  ],
  ['a leader that stops gives nothing back', '    await lock[Symbol.asyncDispose]()\n', '', elected],
  ['what the leader does may fail', '      this.#emitFailed(error)\n      resign()\n', '', elected],
  [
    'what fails is not told',
    '      isWell = false\n      this.#emitFailed(error)\n',
    '      isWell = false\n',
    elected,
  ],
  [
    'a leader that was told to stop has failed',
    'const causes = [error, error instanceof Error ? error.cause : undefined]',
    'const causes = [error]',
    elected,
  ],
  [
    'a write that comes after its term has failed',
    ' || (one instanceof FenceLostError && one.fence === epoch)',
    '',
    elected,
  ],
  ['what any fence refuses is no failure', ' && one.fence === epoch', '', elected],
  [
    'a wait that has ended is a failure',
    'if (error instanceof BusyError || error instanceof GuardedError) continue',
    'if (error instanceof GuardedError) continue',
    elected,
  ],
  [
    'a wait behind a guarded transaction is a failure',
    'if (error instanceof BusyError || error instanceof GuardedError) continue',
    'if (error instanceof BusyError) continue',
    elected,
  ],
  [
    'the process of a candidate ends while it rests',
    'await sleep(fullJitterMs(failures, this.#spec.leaseMs / 3, MAX_REST_MS), signal)',
    'await sleep(fullJitterMs(failures, this.#spec.leaseMs / 3, MAX_REST_MS), signal, { ref: false })',
    elected,
  ],
  [
    'what hangs after a loss is waited for as long again',
    'const endsAt = Math.min(mostAt, this.#drainedAt)',
    'const endsAt = mostMs < Number.POSITIVE_INFINITY ? mostAt : this.#drainedAt',
    elected,
  ],
  ['what was begun outlasts its instance', "    closed?.addEventListener('abort', end)\n", '', elected],
  [
    'a name that is too long is told of as another field',
    '  if (bytes > MAX_NAME_BYTES)\n',
    '  if (bytes > MAX_KEY_BYTES)\n',
    elected,
  ],
  [
    'who is stopped when the lock was taken leads',
    '    if (this.#stopping.signal.aborted) {\n',
    '    if (false) {\n',
    elected,
  ],
  [
    'a term that is over is begun',
    'const { onElected, onLost } = term.signal.aborted ? {} : this.#options',
    'const { onElected, onLost } = this.#options',
    elected,
  ],
  [
    '`close` does not wait for a lock that was just taken',
    'await this.#database.work(async () => this.#lead(await this.#take(this.#spec)))',
    'await this.#lead(await this.#take(this.#spec))',
    elected,
  ],
  [
    'a loss is not told to who leads',
    "    lock.signal.addEventListener('abort', lose, { once: true })\n",
    '',
    elected,
  ],
  ['who has resigned is taken for the leader', '    this.signal.throwIfAborted()\n', '', elected],
  [
    'a database that is away ends it',
    '        this.#emitFailed(error)\n',
    '        if (error) return\n',
    elected,
  ],
]

const maintenance = 'src/ops/maintenance.ts'
const loops = [
  ['one aggregate whose tables are locked ends the round', '        away,\n', '', loop],
  ['a monitor is sent out while it runs', 'this.#watching.has(monitor.name) || ', '', loop],
  ['a monitor is sent out in each round', ' || now < (this.#dueAt.get(monitor.name) ?? 0)', '', loop],
  ['a monitor that runs is not waited for', '...this.#watching.values(), ', '', loop],
  ['each process removes expired rows', ").state === 'taken'", ') !== undefined', loop],
  ['a pool under test is maintained', 'isAutomatic && isUnderTest(this.#database.pool)', 'false', loop],
  ['a schema without tables is asked as often as ever', '    isAway ||= errors.length > 0\n', '', loop],
  [
    'a monitor that fails is not told of',
    'const run = monitor.run({ signal }).catch((error) => void this.#emitFailed(error))',
    'const run = monitor.run({ signal }).catch(() => undefined)',
    loop,
  ],
]

export const electionMutations = [
  ...elections.map(([name, from, to, tests]) => ({
    name: `election: ${name}`,
    file: election,
    from,
    to,
    tests,
  })),
  {
    name: 'election: its instance does not stop it',
    file: 'src/dibs.ts',
    from: '    const stop = (): Promise<void> => election.stop()\n    this.#stops.add(stop)\n',
    to: '    const stop = (): Promise<void> => election.stop()\n',
    tests: elected,
  },
  {
    name: 'maintenance: a database that is away is asked as often as ever',
    file: 'src/ops/maintenance-loop.ts',
    from: "this.#failures = end === 'away' ? this.#failures + 1 : 0",
    to: 'this.#failures = 0',
    tests: loop,
  },
  {
    name: 'maintenance: a request that is stopped ends those of others',
    file: 'src/ops/maintenance-loop.ts',
    from: '    if (this.#requests.size > 0) return\n',
    to: '    this.#requests.clear()\n',
    tests: loop,
  },
  ...loops.map(([name, from, to, tests]) => ({
    name: `maintenance: ${name}`,
    file: maintenance,
    from,
    to,
    tests,
  })),
]
