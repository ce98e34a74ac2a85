// Guards of locks as a process holds them: first those in SQL, then those around it.
import { inFunction } from './mutation.mjs'

const sql = 'sql/0016_lock_handle.sql'
const test = (name) => `src/locks/${name}.test.ts`
const held = [test('lock')]
const loss = [test('lock-loss')]
const guards = [test('lock-guard')]
const operators = [test('locks')]
const input = [test('lock-input')]
const elsewhere = [test('fenced-write')]
const explored = [test('lock.explore')]
const exploredGuards = [test('lock-guard.explore')]
const bell = [test('bell')]
const functions = [test('lock-functions')]

const acquire = (text) => inFunction('lock_acquire', text)
const back = (text) => inFunction('lock_give_back', text)
const all = (text) => inFunction('lock_renew_all', text)
const one = (text) => inFunction('lock_renew_one', text)
const guard = (text) => inFunction('lock_guard', text)
const force = (text) => inFunction('lock_force', text)

/** @type {[name: string, from: string | RegExp, to: string, tests: string[]][]} */
const inSql = [
  [
    'acquire: nobody knows its lock again',
    acquire('if v_seen.is_mine and v_seen.is_held then'),
    'if false then',
    loss,
  ],
  [
    'acquire: a call that asks again is given what is another’s',
    acquire(' and l.fence = v_seen.fence and l.expires_at > v_now;'),
    ';',
    explored,
  ],
  [
    'acquire: everybody takes the lock for its own',
    acquire('l.holder = p_holder as is_mine'),
    'true as is_mine',
    held,
  ],
  [
    'acquire: a live lease is no obstacle',
    acquire('or v_seen.is_held then'),
    'or false then',
    [...held, ...explored],
  ],
  [
    'acquire: a lease that was renewed meanwhile is no obstacle',
    acquire('continue when v_lock.name is null or v_lock.expires_at > v_now;'),
    'continue when v_lock.name is null;',
    explored,
  ],
  [
    'acquire: nothing is locked before it is taken over',
    acquire('v_seen.permit for no key update;'),
    'v_seen.permit;',
    explored,
  ],
  [
    'acquire: a guard is no obstacle',
    acquire('for update skip locked;\n    if not found'),
    'for no key update skip locked;\n    if not found',
    guards,
  ],
  [
    'acquire: waits behind whoever guards it',
    acquire('for update skip locked;\n    if not found'),
    'for update;\n    if not found',
    guards,
  ],
  [
    'acquire: the clock is read before the lock',
    acquire('    v_now := {schema}.clock();\n    continue when'),
    '    continue when',
    functions,
  ],
  [
    'acquire: a fence need not grow',
    acquire('fence = {schema}.next_fence(l.fence, v_now), acquired_at'),
    'fence = l.fence, acquired_at',
    held,
  ],
  [
    'acquire: does not tell from whom',
    acquire("v_from := case when v_lock.expires_at > '-infinity'"),
    'v_from := case when false',
    held,
  ],
  [
    'acquire: what was given back counts as taken over',
    acquire("v_from := case when v_lock.expires_at > '-infinity'"),
    'v_from := case when true',
    held,
  ],
  [
    'acquire: permits are not counted',
    acquire('pg_catalog.generate_series(0, p_permits - 1)'),
    'pg_catalog.generate_series(0, p_permits)',
    held,
  ],
  [
    'acquire: those who wait leave no mark',
    acquire("set wanted_until = v_now + p_wanted_ms * interval '1 millisecond'"),
    'set wanted_until = l.wanted_until',
    [...held, ...explored],
  ],
  [
    'acquire: does not look again after its mark',
    acquire('        order by i.permit for no key update skip locked));\n      continue;'),
    '        order by i.permit for no key update skip locked));\n      exit;',
    explored,
  ],
  [
    'acquire: a mark that could not be made is no matter',
    acquire("    if found then\n      v_state := 'busy';"),
    "    if false then\n      v_state := 'busy';",
    explored,
  ],
  [
    'acquire: a mark waits for whoever has the row',
    acquire('order by i.permit for no key update skip locked));'),
    'order by i.permit for no key update));',
    functions,
  ],
  [
    'acquire: whoever is passing is waited for without a bound',
    acquire('        perform {schema}.bound(10);\n        -- point: before the lock'),
    '        -- point: before the lock',
    functions,
  ],
  [
    'acquire: the bound of a row is one of the table',
    acquire("      perform pg_catalog.set_config('lock_timeout', '0', true);\n"),
    '',
    functions,
  ],
  [
    'acquire: nothing is locked before it is taken over, by one who waits',
    acquire('v_seen.permit for no key update skip locked;'),
    'v_seen.permit;',
    explored,
  ],
  [
    'acquire, short: a lock that is held is free',
    acquire("and i.permit = 0 and i.expires_at = '-infinity' for update"),
    'and i.permit = 0 for update',
    [...held, ...explored],
  ],
  [
    'acquire, short: its row is not locked',
    acquire("i.expires_at = '-infinity' for update skip locked) i"),
    "i.expires_at = '-infinity') i",
    [...functions, ...explored],
  ],
  [
    'acquire, short: a fence need not grow',
    acquire('      fence = {schema}.next_fence(l.fence, v_now)\n    from'),
    '      fence = l.fence\n    from',
    functions,
  ],
  [
    'acquire, short: nobody knows its lock again',
    acquire('if v_lock.expires_at > v_now and v_lock.holder <> p_holder'),
    'if v_lock.expires_at > v_now',
    functions,
  ],
  [
    'acquire, short: what has run out is held',
    acquire('if v_lock.expires_at > v_now and v_lock.holder <> p_holder'),
    'if v_lock.holder <> p_holder',
    held,
  ],
  [
    'acquire, short: nobody need be marked',
    acquire('(p_wanted_ms = 0 or v_lock.wanted_until >'),
    '(true or v_lock.wanted_until >',
    [...held, ...explored],
  ],
  [
    'release: by whomever',
    back('and l.fence = p_fence and l.expires_at'),
    'and l.expires_at',
    [...loss, ...explored],
  ],
  [
    'release: the fence stays, and nobody in a guarded transaction is waited for',
    back('fence = {schema}.next_fence(l.fence, v_now), '),
    '',
    guards,
  ],

  [
    'release: without a bound',
    back('perform {schema}.bound({schema}.bounded_wait(p_wait_ms));'),
    '',
    functions,
  ],
  ['release: nobody is said to wait', back('v_lock.wanted_until > v_now)'), 'false)', held],
  [
    'release: everybody is said to have released it',
    back("v_lock.holder is distinct from p_holder or v_lock.expires_at > '-infinity'"),
    'false',
    [...held, ...functions],
  ],
  [
    'release: what was taken away is released',
    back("and l.fence = p_fence and l.expires_at > '-infinity'"),
    'and l.fence = p_fence',
    functions,
  ],
  [
    'release: nobody knows that it has released',
    back("v_lock.holder is distinct from p_holder or v_lock.expires_at > '-infinity'"),
    'true',
    functions,
  ],
  [
    'renewal of all: of whatever fence',
    all("l.permit = m.permit and l.fence = m.fence and l.expires_at > '-infinity'\n    order"),
    "l.permit = m.permit and l.expires_at > '-infinity'\n    order",
    functions,
  ],
  [
    'renewal of all: of what was taken away',
    all("and l.fence = m.fence and l.expires_at > '-infinity'\n    order"),
    'and l.fence = m.fence\n    order',
    functions,
  ],
  [
    'renewal of all: waits for others',
    all('for no key update of l skip locked'),
    'for no key update of l',
    held,
  ],
  [
    'renewal of all: nothing is locked',
    all('order by l.name, l.permit for no key update of l skip locked'),
    '',
    explored,
  ],
  [
    'renewal of all: what was passed over is lost',
    all("when l.name is null then 'lost' else 'locked' end"),
    "else 'lost' end",
    held,
  ],
  [
    'renewal of all: nothing is ever lost',
    all("when l.name is null then 'lost' else 'locked' end"),
    "else 'locked' end",
    functions,
  ],
  [
    'renewal of one: of whatever fence',
    one("and l.fence = p_fence and l.expires_at > '-infinity' for"),
    "and l.expires_at > '-infinity' for",
    [...functions, ...explored],
  ],
  [
    'renewal of one: of what was taken away',
    one("and l.expires_at > '-infinity' for no key update;"),
    'for no key update;',
    functions,
  ],
  [
    'renewal of one: the clock is read before the lock',
    one('  v_now := {schema}.clock();\n  -- point'),
    '  -- point',
    functions,
  ],
  [
    'renewal of one: without a bound',
    one('perform {schema}.bound({schema}.bounded_wait(p_wait_ms));'),
    '',
    functions,
  ],
  [
    'guard: without a lock',
    guard('and l.fence = p_fence for key share;'),
    'and l.fence = p_fence;',
    [...guards, ...exploredGuards],
  ],
  ['guard: a lock that keeps renewals away', guard('for key share;'), 'for share;', guards],
  ['guard: of whatever fence', guard('and l.fence = p_fence for key share;'), 'for key share;', guards],
  [
    'guard: a lease that has run out gets through',
    guard('or v_lock.expires_at <= v_now then'),
    'or false then',
    guards,
  ],
  [
    'guard: the clock is read before the lock',
    guard('  v_now := {schema}.clock();\n  if v_lock.name'),
    '  if v_lock.name',
    functions,
  ],
  [
    'guard: the past is no conflict',
    guard("if pg_catalog.current_setting('transaction_isolation') <> 'read committed' then"),
    'if false then',
    guards,
  ],
  [
    'guard: a transaction may stand still for ever',
    guard('if p_idle_ms is not null and (v_idle_ms = 0 or v_idle_ms > p_idle_ms) then'),
    'if false then',
    guards,
  ],
  ['guard: a limit is raised', guard('(v_idle_ms = 0 or v_idle_ms > p_idle_ms) then'), 'true then', guards],
  [
    'guard: without a bound',
    guard('perform {schema}.bound({schema}.bounded_wait(p_wait_ms));'),
    '',
    functions,
  ],
  ['force: the fence is raised under a guard', force('for update skip locked;'), ';', functions],
  [
    'force: what it takes is renewed on',
    force("expires_at = '-infinity',"),
    'expires_at = l.expires_at,',
    [...operators, ...functions],
  ],
  [
    'force: its holder may release it',
    force("holder = 'taken from ' || l.holder, "),
    '',
    [...operators, ...functions],
  ],
  [
    'force: the rows are not locked',
    force('order by l.permit for no key update'),
    'order by l.permit',
    explored,
  ],
  [
    'force: whatever fence',
    force('l.fence = coalesce(p_fence, l.fence)'),
    'l.fence > 0',
    [...operators, ...functions],
  ],
  [
    'force: the fence stays',
    force('case when v_is_guarded then l.fence else {schema}.next_fence(l.fence, v_now) end'),
    'l.fence',
    operators,
  ],
  ['force: nobody is said to wait', force("'isWanted', v_is_wanted"), "'isWanted', false", operators],
]

/** @type {[file: string, name: string, from: string | RegExp, to: string, tests: string[]][]} */
const around = [
  [
    'held-lock.ts',
    'a holder that stood still does not notice',
    "    this.#notice(performance.now())\n    if (this.#state === 'lost') throw this.signal.reason",
    "    if (this.#state === 'lost') throw this.signal.reason",
    loss,
  ],
  [
    'held-lock.ts',
    'what ran out by its own clock is held',
    'if (now < Math.min(this.#deadlineAt, this.#maxAt)) return',
    'if (now < this.#maxAt) return',
    loss,
  ],
  [
    'held-lock.ts',
    'it is held for ever',
    'Math.ceil(Math.min(this.ttlMs, this.#maxAt - now))',
    'this.ttlMs',
    loss,
  ],
  [
    'held-lock.ts',
    'that it was held for long enough counts as lost contact',
    'if (this.#isLast || now >= this.#maxAt)',
    'if (now >= this.#maxAt)',
    loss,
  ],
  [
    'held-lock.ts',
    'a late answer to a renewal shortens the lease',
    ' || sentAt + forMs * SHARE < this.#deadlineAt',
    '',
    [test('held-lock')],
  ],

  [
    'held-lock.ts',
    'a released lock is renewed on',
    "    this.#stop('released')\n",
    "    this.#state = 'released'\n",
    loss,
  ],
  [
    'held-lock.ts',
    'release asks also for what is lost',
    "    if (this.#state === 'lost') return 'lost'\n",
    '',
    loss,
  ],
  ['held-lock.ts', 'each release is sent', 'this.#releasing ??= this', 'this.#releasing = this', loss],
  [
    'held-lock.ts',
    'a release that failed is not tried again',
    '      this.#releasing = undefined // it may be tried again\n',
    '',
    loss,
  ],
  [
    'held-lock.ts',
    'nobody is told that it is free',
    '    if (isWanted) this.#parts.wakeups.hint(topicOf(this.name))\n',
    '',
    held,
  ],
  ['held-lock.ts', 'everybody is told that it is free', '    if (isWanted) this', '    this', held],
  [
    'held-lock.ts',
    'a loss that a release shows is not told',
    "    if (state === 'lost') {\n",
    '    if (false) {\n',
    held,
  ],
  [
    'held-lock.ts',
    'a transaction is let through that is known to be late',
    "this.#state === 'held' ? String(this.fence) : null",
    'String(this.fence)',
    guards,
  ],
  [
    'held-lock.ts',
    'a refused guard does not end the lock',
    '      this.#lose(reason)\n    } else',
    '    } else',
    guards,
  ],
  ['held-lock.ts', 'a savepoint undoes a refusal', '      session.refuseCommit?.(reason)\n', '', guards],
  [
    'held-lock.ts',
    'a savepoint undoes a guard',
    '    session.repeatOutside?.((outer) => this.#guard(outer, endsIdle))\n',
    '',
    guards,
  ],
  [
    'held-lock.ts',
    'what another database says is believed',
    "if (reason === 'held' && isRefused && error.message.includes('lost'))",
    'if (false)',
    elsewhere,
  ],
  [
    'held-lock.ts',
    'what a store says is believed',
    "if (reason !== 'held') this.#lose(reason ?? 'stolen')",
    "this.#lose('stolen')",
    elsewhere,
  ],
  ['held-lock.ts', 'a store is written by one of several', 'if (this.#permits > 1)', 'if (false)', elsewhere],
  [
    'held-lock.ts',
    'a release that was done counts as a loss',
    "return isAgain && told.state === 'lost' ? { state: 'released' } : told",
    'return told',
    loss,
  ],
  [
    'held-lock.ts',
    'a release is tried for ever',
    'performance.now() >= until) throw error',
    'false) throw error',
    loss,
  ],
  [
    'held-lock.ts',
    'a release waits as long as anybody',
    'sendPart(giveLockBack, values, waitMs + 1_000)',
    'sendPart(giveLockBack, values)',
    loss,
  ],
  ['held-lock.ts', 'a lost lock is a conflict', "(row?.state ?? 'stolen')", "(row?.state ?? 'held')", guards],
  [
    'held-lock.ts',
    'nobody listens to a client that is guarded',
    '    if (endsIdle) keepListening(tx)\n',
    '',
    guards,
  ],
  ['keep-listening.ts', 'the listener stays', "    client.off('error', ignore)\n", '', guards],
  ['keep-listening.ts', 'one listener for each guard', ' || heard.has(client)', '', guards],
  [
    'held-lock.ts',
    'a store elsewhere is written by whomever',
    'await writeFenced(store, write, this.fence)',
    'await writeFenced(store, write, Number.MAX_SAFE_INTEGER)',
    elsewhere,
  ],
  [
    'fenced-write.ts',
    'a later fence is no obstacle',
    / and \(\$\{fenceColumn\} is null or \$\{fenceColumn\} <= \$1\)/,
    '',
    elsewhere,
  ],
  ['fenced-write.ts', 'a fence must be there', /\$\{fenceColumn\} is null or /, '', elsewhere],
  [
    'fenced-write.ts',
    'the fence is not left there',
    /\[\.\.\.fill\(set, 2 \+ where\.length\), [^\]]*\]/,
    'fill(set, 2 + where.length)',
    elsewhere,
  ],
  [
    'fenced-write.ts',
    'a row that is not there counts as refused',
    'if (there.rows.length === 0)',
    'if (false)',
    elsewhere,
  ],
  [
    'lock-keeper.ts',
    'a renewal that fails ends the lock',
    '      else lock.onUnanswered()\n    }',
    '      else lock.onStolen()\n    }',
    loss,
  ],
  [
    'lock-keeper.ts',
    'renewals go over the pool alone',
    '    if (line.isBusy) return await overPool()\n',
    '    if (line) return await overPool()\n',
    held,
  ],
  [
    'lock-keeper.ts',
    'all wait for one connection that is silent',
    '    if (line.isBusy) return await overPool()\n',
    '',
    loss,
  ],
  [
    'lock-keeper.ts',
    'a silent connection is waited for to the end',
    'await line.send(renewLocks, [asked], patienceMs)',
    'await line.send(renewLocks, [asked], 60_000)',
    loss,
  ],

  ['lock-keeper.ts', 'each is renewed by itself', '.slice(0, MOST)', '.slice(0, 1)', held],
  [
    'lock-keeper.ts',
    'only what is due to the moment',
    'lock.renewAt - lock.ttlMs / 6) <= now',
    'lock.renewAt) <= now',
    held,
  ],
  [
    'take-lock.ts',
    'a lock that came too late is kept',
    "(late.state === 'taken' ? this.#giveBack(late) : undefined)",
    '(late ? undefined : undefined)',
    held,
  ],
  [
    'take-lock.ts',
    'the signal is not heard while the server is asked',
    'await untilAborted(asking, signal)',
    'await asking',
    held,
  ],
  ['take-lock.ts', 'a lost answer is not asked for again', '!mayHelp ||', 'mayHelp ||', loss],
  ['take-lock.ts', 'those who wait do not say so', 'await this.#ask(WANTED_MS)', 'await this.#ask(0)', held],
  [
    'take-lock.ts',
    'the wait has no end',
    'if (leftMs <= 0 || signal?.aborted) return undefined',
    'if (signal?.aborted) return undefined',
    held,
  ],
  [
    'take-lock.ts',
    'all of a process ask at once',
    'const leave = await queue.enter(name, waitMs, signal)',
    'const leave = queue && waitMs ? () => {} : undefined',
    held,
  ],
  ['bell.ts', 'hints are not heard', '      this.#wake?.()\n', '', bell],
  [
    'bell.ts',
    'a hint before the wait is lost',
    'if (this.#hasRung || signal?.aborted) return',
    'if (signal?.aborted) return',
    bell,
  ],
  [
    'lock-queue.ts',
    'one that left keeps its place',
    '      if (place >= 0) queue.splice(place, 1)\n',
    '',
    held,
  ],
  [
    'lock-desk.ts',
    'a function that returned is believed though its lock is lost',
    '  lock.signal.throwIfAborted()\n',
    '',
    loss,
  ],
  [
    'lock-desk.ts',
    'a function that failed keeps its lock',
    '    await lock[Symbol.asyncDispose]()\n    throw error',
    '    throw error',
    loss,
  ],
  [
    'lock-desk.ts',
    'closing does not wait for those at work',
    'return await this.#parts.database.work(async () => runUnder(await this.#wait(spec), fn))',
    'return runUnder(await this.#wait(spec), fn)',
    loss,
  ],
  [
    'lock-desk.ts',
    'closing waits for those who wait',
    'ending.abort(new ClosedError())',
    'ending.signal',
    loss,
  ],
  [
    'lock-desk.ts',
    'closing leaves locks alone',
    'if (lock instanceof HeldLock) lock.close()',
    'if (lock === undefined) break',
    loss,
  ],
  ['lock.ts', 'a lease of nothing', 'const MIN_TTL_MS = 50', 'const MIN_TTL_MS = 0', input],
  ['lock.ts', 'a lease of a year', 'const MAX_TTL_MS = 24 * 3_600_000', 'const MAX_TTL_MS = 2 ** 40', input],
  ['lock.ts', 'no permits', 'permits < 1', 'permits < 0', input],
  ['lock.ts', 'any number of permits', 'permits > MAX_PERMITS', 'false', input],
  [
    'locks.ts',
    'those who wait are not told of a force',
    '    if (told.isWanted) this.#wakeups.hint(topicOf(name))\n',
    '',
    operators,
  ],

  [
    'locks.ts',
    'a force that an open transaction stands in the way of is a statement that took long',
    "error.sqlState === '55P03')) throw error",
    'false)) throw error',
    operators,
  ],
  [
    'held-lock.ts',
    'any endsIdle',
    "if (typeof endsIdle !== 'boolean')",
    'if (endsIdle === undefined)',
    guards,
  ],
  [
    'held-lock.ts',
    'a guard of what may not write says no more than the server',
    '      if (unfit)',
    '      if (unfit && false)',
    guards,
  ],
  [
    'fenced-write.ts',
    'any column of fences',
    "if (typeof fenceColumn !== 'string')",
    'if (fenceColumn === undefined)',
    elsewhere,
  ],

  [
    'lock-statements.ts',
    'what has run out is listed',
    '  where l.expires_at operator(pg_catalog.>) c.now and pg_catalog.starts_with',
    '  where pg_catalog.starts_with',
    operators,
  ],
]

const transaction = 'src/postgres/open-transaction.ts'

/** @type {[file: string, name: string, from: string, to: string, tests: string[]][]} */
const beneath = [
  [
    transaction,
    'nobody is told by a statement that its transaction stood idle',
    '(this.#idleEnd ?? error)',
    'error',
    guards,
  ],
  [
    transaction,
    'nobody is told at COMMIT that the transaction stood idle',
    'throw this.#idleEnd ?? new',
    'throw new',
    guards,
  ],
  [
    transaction,
    'a savepoint that is not ours undoes a guard',
    '      await this.#repeatUndone()\n      return result',
    '      return result',
    guards,
  ],
  [
    transaction,
    'a savepoint that is rolled back past the transaction undoes a guard',
    '    await this.#repeatUndone() // by `tx.client`\n',
    '',
    guards,
  ],
  [
    transaction,
    'what is done again in a savepoint is forgotten with it',
    '      handle.repeated.add(repeat) // it may be a savepoint as well\n',
    '',
    guards,
  ],
  [
    'src/postgres/watch-control.ts',
    'nobody counts the savepoints that are rolled back',
    'isPartial()) watch.undone++',
    'isPartial()) watch.seen += 0',
    guards,
  ],
  [
    'src/postgres/adapters/from-postgres-js.ts',
    'a transaction of postgres.js that stands still ends the process',
    'isDeaf: true',
    'isDeaf: false',
    guards,
  ],
]

/** @type {import('./mutation.mjs').Mutation[]} */
export const lockMutations = [
  ...beneath.map(([file, name, from, to, tests]) => ({ name: `lock: ${name}`, file, from, to, tests })),
  ...inSql.map(([name, from, to, tests]) => ({ name: `lock handle: ${name}`, file: sql, from, to, tests })),
  ...around.map(([file, name, from, to, tests]) => ({
    name: `lock: ${name}`,
    file: `src/locks/${file}`,
    from,
    to,
    tests,
  })),
]
