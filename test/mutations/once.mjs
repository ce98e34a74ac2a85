// Guards of `dibs.once`: first those in SQL, then those around it.
import { about, claims, inFunction } from './mutation.mjs'

const ground = 'sql/0002_bound.sql'
const joined = ['joined', 'inside', 'input'].map((part) => claims(`once-${part}.test.ts`))
const leased = ['leased', 'lease'].map((part) => claims(`once-${part}.test.ts`))
const table = [claims('claim-table.test.ts')]
const explored = [claims('once.explore.test.ts')]
const operation = [claims('operation.test.ts')]
const operators = [claims('claims.test.ts')]
const together = ['src/postgres/together.test.ts']

const begin = (text) => inFunction('claim_begin', text)
const ifHeld = "  if state <> 'held' then"

/** @type {[name: string, from: string | RegExp, to: string, tests: string[], file?: string][]} */
const inSql = [
  ['claims are not unique', '  primary key (scope, key),', '', joined],
  [
    'a fence only grows with the clock',
    'greatest(last operator(pg_catalog.+) 1,',
    'greatest(0,',
    table,
    ground,
  ],
  [
    'a fence begins with 1',
    "(pg_catalog.date_part('epoch', at) operator(pg_catalog.*) 1000000)::bigint)",
    '1)',
    table,
    ground,
  ],
  ['begin: nothing is locked before it is taken over', begin(' for no key update;'), ';', explored],
  [
    'begin: the clock is read before the lock',
    begin('    v_now := {schema}.clock();\n    v_is_over'),
    '    v_now := coalesce(v_now, {schema}.clock());\n    v_is_over',
    table,
  ],
  [
    'begin: a lease begins before the wait for another that rolls back',
    begin("v_later >= v_now + interval '10 milliseconds'"),
    'false',
    leased,
  ],
  [
    'begin: fingerprints are not compared',
    begin('if v_claim.fingerprint <> p_fingerprint then'),
    'if false then',
    joined,
  ],
  [
    'begin: fingerprints are compared when an outcome is there',
    begin('if v_claim.fingerprint <> p_fingerprint then'),
    "if v_claim.fingerprint <> p_fingerprint and v_claim.status <> 'pending' then",
    leased,
  ],
  [
    'begin: an outcome is not replayed',
    begin("elsif v_claim.status <> 'pending' then"),
    'elsif false then',
    joined,
  ],
  [
    'begin: a live lease is no obstacle',
    begin('if v_claim.lease_until > v_now then'),
    'if false then',
    leased,
  ],
  [
    'begin: nobody knows its claim again',
    begin('if v_claim.holder <> v_holder then'),
    'if true then',
    leased,
  ],
  [
    'begin: everybody takes the claim for its own',
    begin('if v_claim.holder <> v_holder then'),
    'if false then',
    leased,
  ],
  [
    'begin: a takeover that is known again is not ambiguous',
    begin("case when v_claim.lost > 0 then 'taken over' else 'claimed' end"),
    "'claimed'",
    leased,
  ],
  [
    'begin: a claim that is known again has all of its lease',
    begin("else 'claimed' end, v_claim, v_left_ms)"),
    "else 'claimed' end, v_claim, null)",
    leased,
  ],
  [
    'begin: once inside itself',
    begin('elsif not v_is_lost and v_claim.holder = v_holder then'),
    'elsif false then',
    joined,
  ],
  ['begin: hold does not hold', begin('elsif p_hold and v_is_lost then'), 'elsif false then', leased],
  [
    'begin: hold holds also what was released',
    begin('elsif p_hold and v_is_lost then'),
    'elsif p_hold then',
    leased,
  ],
  [
    'begin: a joined call runs beside what a lease has left',
    inFunction('claim_begin_joined', '100), true, null'),
    '100), false, null',
    leased,
  ],
  [
    'begin: an expired key is not new',
    begin('coalesce(v_claim.expires_at <= v_now, false)'),
    'false',
    joined,
  ],
  [
    'begin: what is held expires',
    begin("v_now, case when p_lease_ms is null then v_now + p_keep_ms * interval '1 millisecond' end)"),
    "v_now, v_now + p_keep_ms * interval '1 millisecond')",
    table,
  ],
  [
    'begin: attempts are not capped',
    begin('elsif v_is_lost and v_claim.lost + 1 >= p_max_lost then'),
    'elsif false then',
    leased,
  ],
  [
    'begin: released attempts are capped too',
    begin('elsif v_is_lost and v_claim.lost + 1 >= p_max_lost then'),
    'elsif v_claim.attempt >= p_max_lost then',
    leased,
  ],
  [
    'begin: a takeover keeps the fence',
    begin('holder = v_holder, fence = {schema}.next_fence(c.fence, v_now), attempt = c.attempt + 1,'),
    'holder = v_holder, attempt = c.attempt + 1,',
    leased,
  ],
  [
    'begin: an expired key keeps the fence',
    begin("status = 'pending', fence = {schema}.next_fence(c.fence, v_now), attempt = 1,"),
    "status = 'pending', attempt = 1,",
    table,
  ],
  [
    'begin: an expired key keeps its id',
    begin('id = p_id, holder = v_holder, status'),
    'holder = v_holder, status',
    leased,
  ],
  [
    'begin: every attempt counts as lost',
    begin('lost = c.lost + v_is_lost::integer'),
    'lost = c.lost + 1',
    leased,
  ],
  ['begin: no attempt counts as lost', begin('lost = c.lost + v_is_lost::integer'), 'lost = c.lost', leased],
  [
    'begin: a fingerprint that comes later is not kept',
    begin('fingerprint = coalesce(c.fingerprint, p_fingerprint), unfinished'),
    'unfinished',
    table,
  ],
  ['begin: the wait has no bound', begin('  perform {schema}.bound(p_wait_ms);\n'), '', joined],
  [
    'begin: each wait may last as long as the first',
    begin(" - pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - v_since) * 1000)::integer"),
    ')::integer',
    table,
  ],
  [
    'begin: running out of time aborts the transaction',
    inFunction('claim_begin_joined', 'exception when lock_not_available then'),
    'exception when no_data_found then',
    joined,
  ],
  [
    'begin: each holder that gives up begins the wait anew',
    inFunction('claim_begin_joined', 'least(v_left_ms, 100)'),
    'v_left_ms',
    table,
  ],
  [
    'begin: the lock on a claim of another stays',
    inFunction('claim_begin_joined', "if v_told ->> 'state' = 'in progress' then"),
    'if false then',
    table,
  ],
  [
    "begin: the caller's statement_timeout strikes first",
    inFunction('claim_begin_joined', '{schema}.bounded_wait(p_wait_ms)'),
    'p_wait_ms',
    joined,
  ],
  ["begin: the caller's lock_timeout is lost", begin('  set lock_timeout = 0\n'), '', joined],
  ['begin: whoever loses is an error', begin('      continue when not found;\n'), '', explored],
  ['lock: nothing is locked', inFunction('claim_lock', ' for no key update;'), ';', explored],
  [
    'lock: the fence is not compared',
    inFunction('claim_lock', ' and c.fence = p_fence for no key update'),
    ' for no key update',
    leased,
  ],
  [
    'lock: an outcome may be written over',
    inFunction('claim_lock', "select c.status = 'pending' into"),
    'select true into',
    table,
  ],
  [
    'finish: also when the claim is lost',
    inFunction('claim_finish', ' and c.fence = p_fence and c.status'),
    ' and c.status',
    leased,
  ],
  [
    'finish: an outcome may be written over',
    inFunction('claim_finish', " and c.status = 'pending'"),
    '',
    table,
  ],
  [
    'finish: what was lost is taken for stored',
    inFunction('claim_finish', 'if v_claim.fence is distinct from p_fence then'),
    'if false then',
    leased,
  ],
  [
    'finish: the clock is read before the lock',
    inFunction('claim_finish', '    perform {schema}.claim_lock(p_scope, p_key, p_fence, p_wait_ms);\n'),
    '    perform {schema}.bound(p_wait_ms);\n',
    table,
  ],
  [
    'finish: COMMIT follows also when the claim is lost',
    inFunction('claim_finish', 'if p_must then'),
    'if false then',
    table,
  ],
  [
    'finish: is kept from the beginning on',
    inFunction('claim_finish', 'else {schema}.clock() + p_keep_ms * interval'),
    'else c.created_at + p_keep_ms * interval',
    joined,
  ],
  [
    'finish: writes the index on the expiry each time',
    inFunction(
      'claim_finish',
      "when c.expires_at > {schema}.clock() + p_keep_ms * interval '0.9 milliseconds' then c.expires_at",
    ),
    'when false then null',
    joined,
  ],
  ['renew: also when the claim is lost', inFunction('claim_renew', ifHeld), '  if false then', table],
  ['step: also when the claim is lost', inFunction('claim_step', ifHeld), '  if false then', leased],
  ['end: also when the claim is lost', inFunction('claim_end', ifHeld), '  if false then', leased],
  [
    'end: keeps the fence',
    inFunction('claim_end', "fence = {schema}.next_fence(c.fence, v_now), holder = 'nobody'"),
    "holder = 'nobody'",
    table,
  ],
  [
    'end: what was released is taken over by maintenance',
    inFunction('claim_end', 'case when p_rest_ms is null then null else c.unfinished end'),
    'c.unfinished',
    operation,
  ],
  [
    'end: a question counts as an attempt',
    inFunction('claim_end', 'case when p_is_void then greatest(0, c.lost - 1) else c.lost end'),
    'c.lost',
    leased,
  ],
  [
    'take over: also what is held',
    inFunction('claim_take_over', ' and c.lease_until <= v_now'),
    '',
    operation,
  ],
  [
    'take over: attempts are not capped',
    inFunction('claim_take_over', 'c.lost + 1 >= p_max_lost as is_last'),
    'false as is_last',
    operation,
  ],
  [
    'take over: keeps the fence',
    inFunction('claim_take_over', 'fence = {schema}.next_fence(c.fence, v_now), lost'),
    'lost',
    table,
  ],
  // What is locked is what another takes over: to wait for it finds it taken, and costs only time.
  ['take over: twice', inFunction('claim_take_over', 'for no key update skip locked'), '', explored],
  [
    'forget expired: also what is being claimed anew',
    inFunction('claim_forget_expired', '\n    for update skip locked'),
    '',
    table,
  ],
  [
    'decide: also about what is held',
    inFunction('claim_decide', ' and not p_force then'),
    ' and false then',
    operators,
  ],
  [
    'decide: about what is over',
    inFunction('claim_decide', "elsif v_claim.status <> 'pending' then"),
    'elsif false then',
    leased,
  ],
  ['decide: waits for ever', inFunction('claim_decide', '  perform {schema}.bound(5000);\n'), '', operators],
]

const lock = '  state := {schema}.claim_lock(p_scope, p_key, p_fence, p_wait_ms);\n'
const held = `${ifHeld}\n    return;\n  end if;\n`

/** Time that passes while it waits for the lock would not be seen. */
const clocks = ['renew', 'end'].map((name) => [
  `${name}: the clock is read before the lock`,
  inFunction(`claim_${name}`, `${lock}${held}  v_now := {schema}.clock();\n`),
  `  v_now := {schema}.clock();\n${lock}${held}`,
  table,
])

/** @type {[file: string, name: string, from: string, to: string, tests: string[]][]} */
const around = [
  [
    'once-joined.ts',
    'a final error keeps what was written',
    'tx.closeWith([UNDO, finish(',
    'tx.closeWith([finish(',
    joined,
  ],
  [
    'once-joined.ts',
    'what was left for after the commit is done though the function failed',
    '      tx.dropAfterCommits()\n',
    '',
    joined,
  ],
  [
    'once-joined.ts',
    'a lost COMMIT is not looked into',
    'if (++looks === MAX_LOOKS) throw unknown',
    'throw unknown',
    joined,
  ],
  [
    'once-joined.ts',
    'what was left for after a COMMIT whose answer was lost is not done',
    '    await own.tx.runAfterCommit()\n',
    '',
    joined,
  ],
  [
    'once-joined.ts',
    'a server that is away makes the unknown known',
    'else if (!isAway(error))\n',
    'else\n',
    joined,
  ],
  [
    'once-joined.ts',
    'a look that fails makes the unknown known',
    'error instanceof DatabaseError && this.#starts === starts ? unknown : error',
    'error',
    joined,
  ],
  [
    'once-joined.ts',
    'its own claim is a replay',
    'if (!own) return call.answer(ended.claim, true)',
    'return call.answer(ended.claim, true)',
    joined,
  ],
  [
    'once-joined.ts',
    'a transaction of its own inside another',
    "  if (isInside(database)) throw new NestedTransactionError('dibs.once')\n",
    '',
    joined,
  ],
  [
    'once-joined.ts',
    "an error in the caller's transaction leaves the claim as it is",
    'marked.last(endClaim, release)',
    'Promise.resolve()',
    joined,
  ],
  [
    'once-joined.ts',
    'an outcome is stored before it is parsed',
    'await parseStored(call.spec.result, outcome',
    'void (call.spec.result, outcome',
    joined,
  ],
  [
    'once-joined.ts',
    'an error that is stored is told to one after the other',
    '    this.hasOutcome = true\n',
    '',
    joined,
  ],
  [
    'once-call.ts',
    'a repetition begins the wait anew',
    'const leftMs = this.#asks++ === 0 ?',
    'const leftMs = this.#asks++ < 99 ?',
    joined,
  ],
  [
    'key-turns.ts',
    'calls of one process wait on a connection each',
    '  if (queue) {',
    '  if (queue && ms < 0) {',
    joined,
  ],
  [
    'once-leased.ts',
    'a late holder is given its own outcome',
    "if (told.state === 'stored') return",
    'return',
    leased,
  ],
  [
    'once-leased.ts',
    'hold: any error releases',
    "const mayHaveHappened = onAmbiguous !== 'retry' && !saysSo",
    'const mayHaveHappened = false',
    leased,
  ],
  [
    'once-leased.ts',
    'hold: errors of Dibs release',
    'error instanceof TransientError || error instanceof SnoozeError',
    '(error as { retryable?: boolean }).retryable === true',
    leased,
  ],
  [
    'once-leased.ts',
    'a question that failed releases',
    'await claim.end(retryInMs ?? 0, storeFailure(error), true)',
    'await claim.end(retryInMs, storeFailure(error), true)',
    leased,
  ],
  [
    'once-leased.ts',
    'a final error releases',
    "if (isTerminalError(error, isTerminal)) await claim.finish('failed', failure)\n    else {",
    '{',
    leased,
  ],
  [
    'once-leased.ts',
    'an outcome that is no JSON releases',
    "await claim.finish('failed', storeFailure(error))",
    "await claim.end(null, '{}', false)",
    leased,
  ],
  [
    'held-claim.ts',
    'the claim is released though the work was done',
    '      throw new OutcomeNotStoredError',
    "      await this.end(null, '{}', false)\n      throw new OutcomeNotStoredError",
    leased,
  ],
  [
    '../postgres/send-surely.ts',
    'an answer that is lost is not asked for again',
    'const MAX_TRIES = 5',
    'const MAX_TRIES = 1',
    leased,
  ],
  [
    'held-claim.ts',
    'renewals go over the pool',
    '      .send(renewClaim, values, withinMs)\n',
    '      .send(renewClaim, values, 0)\n',
    leased,
  ],
  ['held-claim.ts', 'a step is done again', 'if (known !== undefined) return', 'if (false) return', leased],
  ['held-claim.ts', 'two steps of one name', 'if (this.#begun.has(name))', 'if (false)', leased],
  ['held-claim.ts', 'a step of a lost claim passes', "if (row?.state !== 'held') {", 'if (false) {', leased],
  ['lease.ts', 'the lease is not renewed', '      this.#schedule(leaseMs / 3 - goneMs)\n', '', leased],
  [
    'lease.ts',
    'a refused renewal is not minded',
    "    if (isHeld === false) return this.lose('renewal')\n",
    '',
    leased,
  ],
  ['lease.ts', 'a holder without news does not stop', "() => this.lose('deadline'),", '() => {},', leased],
  [
    'operation.ts',
    'maintenance repeats what is to be held',
    "if (spec.onAmbiguous === 'hold') return",
    'if (false) return',
    operation,
  ],
  [
    'operation.ts',
    'what failed after a takeover is released',
    'isAmbiguous: true, retryInMs }',
    'isAmbiguous: true, retryInMs: null }',
    operation,
  ],
  ['once-spec.ts', 'a caller may name a scope of ours', "if (text.startsWith(':'))", 'if (false)', operation],
]

/** @type {[file: string, name: string, from: string, to: string, tests: string[]][]} */
const below = [
  [
    'stored-failure.ts',
    'a rule that throws is thrown',
    '  try {\n    return rule?.(error) === true\n  } catch {\n    return false\n  }',
    '  return rule?.(error) === true',
    leased,
  ],
  [
    'transaction.ts',
    'a replay waits for its rollback',
    'connections.finish(checkout.rollback())',
    'await checkout.rollback()',
    joined,
  ],
  [
    'together.ts',
    'what was parsed is forgotten with its message',
    'if (parsed) wire.parsedStatements[parsed.name] = parsed.text',
    'if (parsed) this.#end()',
    together,
  ],
  [
    'together.ts',
    'the same statement is parsed twice in one message',
    '![...before, ...this.#parsing].some((other) => other?.name === name)',
    'true',
    together,
  ],
  [
    'session.ts',
    'a name that the server has forgotten is never parsed again',
    "if (name.startsWith('dibs_')) delete parsed[name]",
    "if (name === '') delete parsed[name]",
    joined,
  ],
  [
    'open-transaction.ts',
    'a COMMIT that was answered is told as one of somebody else',
    'this.#control.seen === 1 && (fault?.sqlState === undefined || fault.fatal)',
    'false',
    [claims('once.cut.test.ts')],
  ],
  ['together.ts', 'a message has no name for those who look for one', "  readonly name = ''\n", '', joined],
  ['statement.ts', 'quotes are not doubled', `replaceAll("'", "''")`, `replaceAll("'", "'")`, joined],
  ['statement.ts', 'backslashes are left as they are', "quoted.includes('\\\\') ?", 'false ?', joined],
  [
    'connections.ts',
    'close does not let a handler end',
    'if (this.#isClosed && !isPart)',
    'if (this.#isClosed)',
    leased,
  ],
  [
    'migrations/yield-points.ts',
    'yield points in every schema',
    "if (found?.marked !== 'true') return text",
    '',
    ['src/postgres/migrations'],
  ],
]

/** @type {import('./mutation.mjs').Mutation[]} */
export const onceMutations = [
  {
    name: 'once: maintenance: what is worked on beyond its time is removed',
    file: 'sql/0005_claim_upkeep.sql',
    from: ' and (e.lease_until > v_now) is not true\n',
    to: '\n',
    tests: [claims('acquire-edges.test.ts')],
  },
  ...[...inSql, ...clocks].map(([name, from, to, tests, file = about('claim', from)]) => ({
    name,
    file,
    from,
    to,
    tests,
  })),
  ...around.map(([file, name, from, to, tests]) => ({ name, file: claims(file), from, to, tests })),
  ...below.map(([file, name, from, to, tests]) => ({ name, file: `src/postgres/${file}`, from, to, tests })),
].map(({ name, ...rest }) => ({ name: `once: ${name}`, ...rest }))
