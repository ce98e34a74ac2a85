// Guards of `dibs.once`: first those in SQL, then those around it.
import { claims, inFunction } from './mutation.mjs'

const sql = 'sql/0004_claim.sql'
const joined = [claims('once-joined.test.ts')]
const leased = [claims('once-leased.test.ts')]
const table = [claims('claim-table.test.ts')]
const explored = [claims('once.explore.test.ts')]
const operation = [claims('operation.test.ts')]
const operators = [claims('claims.test.ts')]

const inBegin = (text) => inFunction('claim_begin', text)

/** @type {import('./mutation.mjs').Mutation[]} */
const inSql = [
  ['claims are not unique', '  primary key (scope, key),', '', joined],
  ['a fence only grows with the clock', 'sql/0002_bound.sql', 'greatest(last + 1,', 'greatest(0,', table],
  [
    'a fence begins with 1',
    'sql/0002_bound.sql',
    "(pg_catalog.date_part('epoch', at) * 1000000)::bigint)",
    '1)',
    table,
  ],
  ['begin: nothing is locked before it is taken over', inBegin(' for no key update;'), ';', explored],
  [
    'begin: the clock is read before the lock',
    inBegin('    v_now := {schema}.clock();\n    v_is_new'),
    '    v_is_new',
    table,
  ],
  [
    'begin: fingerprints are not compared',
    inBegin('if claim.fingerprint <> p_fingerprint then'),
    'if false then',
    joined,
  ],
  [
    'begin: fingerprints are compared when an outcome is there',
    inBegin('if claim.fingerprint <> p_fingerprint then'),
    "if claim.fingerprint <> p_fingerprint and claim.status <> 'pending' then",
    leased,
  ],
  [
    'begin: an outcome is not replayed',
    inBegin("elsif claim.status <> 'pending' then"),
    'elsif false then',
    joined,
  ],
  [
    'begin: a live lease is no obstacle',
    inBegin('elsif claim.lease_until > v_now then'),
    'elsif false then',
    leased,
  ],
  [
    'begin: nobody knows its claim again',
    inBegin('elsif claim.lease_until > v_now and claim.holder = p_holder then'),
    'elsif false then',
    leased,
  ],
  [
    'begin: everybody takes the claim for its own',
    inBegin(' and claim.holder = p_holder then'),
    ' then',
    leased,
  ],
  [
    'begin: a takeover that is known again is not ambiguous',
    inBegin("case when claim.lost > 0 then 'taken over' else 'claimed' end"),
    "'claimed'",
    leased,
  ],
  [
    'begin: hold does not hold',
    inBegin("elsif p_hold and claim.lease_until > '-infinity' then"),
    'elsif false then',
    leased,
  ],
  [
    'begin: hold holds also what was released',
    inBegin("elsif p_hold and claim.lease_until > '-infinity' then"),
    'elsif p_hold then',
    leased,
  ],
  [
    'begin: an expired key is not new',
    inBegin('v_is_new := {schema}.claim_is_over(claim, v_now);'),
    'v_is_new := false;',
    joined,
  ],
  [
    'begin: what is held expires',
    "c.expires_at <= at and (c.status <> 'pending' or c.lease_until = '-infinity')",
    'c.expires_at <= at',
    table,
  ],
  [
    'begin: attempts are not capped',
    inBegin("elsif claim.lease_until > '-infinity' and claim.lost + 1 >= p_max_lost then"),
    'elsif false then',
    leased,
  ],
  [
    'begin: released attempts are capped too',
    inBegin("elsif claim.lease_until > '-infinity' and claim.lost + 1"),
    'elsif claim.attempt',
    leased,
  ],
  [
    'begin: a takeover keeps the fence',
    inBegin('holder = p_holder, fence = {schema}.next_fence(c.fence, v_now), attempt = c.attempt + 1,'),
    'holder = p_holder, attempt = c.attempt + 1,',
    leased,
  ],
  [
    'begin: an expired key keeps the fence',
    inBegin("holder = p_holder, status = 'pending', fence = {schema}.next_fence(c.fence, v_now),"),
    "holder = p_holder, status = 'pending',",
    table,
  ],
  [
    'begin: an expired key keeps its id',
    inBegin('id = p_id, holder = p_holder, status'),
    'holder = p_holder, status',
    leased,
  ],
  [
    'begin: every attempt counts as lost',
    inBegin("c.lost + (c.lease_until > '-infinity')::integer"),
    'c.lost + 1',
    leased,
  ],
  [
    'begin: no attempt counts as lost',
    inBegin("c.lost + (c.lease_until > '-infinity')::integer"),
    'c.lost',
    leased,
  ],
  [
    'begin: a fingerprint that comes later is not kept',
    inBegin('fingerprint = coalesce(c.fingerprint, p_fingerprint), unfinished'),
    'unfinished',
    table,
  ],
  ['begin: the wait has no bound', inBegin('  perform {schema}.bound(p_wait_ms);\n'), '', joined],
  [
    'begin: running out of time aborts the transaction',
    inBegin("exception when lock_not_available then\n  claim := null;\n  state := 'busy';\n"),
    '',
    joined,
  ],
  ["begin: the caller's lock_timeout is lost", inBegin('  set lock_timeout = 0\n'), '', joined],
  [
    'begin: a row that is gone is an error',
    inBegin('    if not found then\n      v_lock := false;\n      continue;\n    end if;\n'),
    '',
    explored,
  ],
  ['lock: nothing is locked', inFunction('claim_lock', ' for no key update;'), ';', explored],
  [
    'lock: the fence is not compared',
    inFunction('claim_lock', "when claim.fence is distinct from p_fence then 'lost'"),
    "when false then 'lost'",
    leased,
  ],
  [
    'lock: an outcome may be written over',
    inFunction('claim_lock', "when claim.status <> 'pending' then 'stored'"),
    '',
    table,
  ],
  [
    'finish: also when the claim is lost',
    inFunction('claim_finish', "  if state <> 'held' then"),
    '  if false then',
    leased,
  ],
  [
    'finish: COMMIT follows also when the claim is lost',
    inFunction('claim_finish', 'if p_must then'),
    'if false then',
    joined,
  ],
  [
    'finish: is kept from the beginning on',
    inFunction('claim_finish', 'else v_now + p_keep_ms * interval'),
    'else c.created_at + p_keep_ms * interval',
    joined,
  ],
  [
    'finish: writes the index on the expiry each time',
    inFunction(
      'claim_finish',
      "when c.expires_at > v_now + p_keep_ms * interval '0.9 milliseconds' then c.expires_at",
    ),
    'when false then null',
    joined,
  ],
  [
    'renew: also when the claim is lost',
    inFunction('claim_renew', "  if state <> 'held' then"),
    '  if false then',
    leased,
  ],
  [
    'step: also when the claim is lost',
    inFunction('claim_step', "  if state <> 'held' then"),
    '  if false then',
    leased,
  ],
  [
    'end: also when the claim is lost',
    inFunction('claim_end', "  if state <> 'held' then"),
    '  if false then',
    leased,
  ],
  [
    'end: keeps the fence',
    inFunction('claim_end', '    fence = {schema}.next_fence(c.fence, v_now),\n'),
    '',
    table,
  ],
  [
    'end: what was released is taken over by maintenance',
    inFunction('claim_end', 'case when p_rest_ms is null then null else c.unfinished end'),
    'c.unfinished',
    operation,
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
    operation,
  ],
  [
    'take over: waits for what is locked',
    inFunction('claim_take_over', 'for no key update skip locked'),
    'for no key update',
    operation,
  ],
  [
    'forget expired: also what is held',
    inFunction('claim_forget_expired', " and (c.status <> 'pending' or c.lease_until = '-infinity')"),
    '',
    operators,
  ],
  [
    'forget expired: waits for what is locked',
    inFunction('claim_forget_expired', 'for update skip locked'),
    'for update',
    operators,
  ],
  [
    'forget: also what is held',
    inFunction('claim_forget', 'if claim.lease_until > v_now and not p_force then'),
    'if false then',
    operators,
  ],
].map(([name, ...rest]) => {
  const [file, from, to, tests] = rest.length === 4 ? rest : [sql, ...rest]
  return { name: `once: ${name}`, file, from, to, tests }
})

const call = 'l.state into state from {schema}.claim_lock(p_scope, p_key, p_fence) l;'
const ifHeld = "  if state <> 'held' then\n    return;\n  end if;\n"

/** Time that passes while it waits for the lock would not be seen. */
const clocks = ['renew', 'end'].map((name) => ({
  name: `once: ${name}: the clock is read before the lock`,
  file: sql,
  from: inFunction(`claim_${name}`, `  select ${call}\n${ifHeld}  v_now := {schema}.clock();\n`),
  to: `  v_now := {schema}.clock();\n  select ${call}\n${ifHeld}`,
  tests: table,
}))

/** @type {import('./mutation.mjs').Mutation[]} */
const around = [
  [
    'once-joined.ts',
    'a final error keeps what was written',
    'rollback to savepoint dibs_claim; ',
    '',
    joined,
  ],
  [
    'once-joined.ts',
    'what was left for after the commit is done though the function failed',
    '    tx.dropAfterCommits()\n',
    '',
    joined,
  ],
  ['once-joined.ts', 'a lost COMMIT is not looked into', 'looks++ === MAX_LOOKS', 'true', joined],
  [
    'once-joined.ts',
    'a transaction of its own inside another',
    '  if (isInside(call.database)) throw new NestedTransactionError()\n',
    '',
    joined,
  ],
  [
    'once-joined.ts',
    "an error in the caller's transaction leaves the claim as it is",
    ').catch(() => {})\n    throw error',
    ', Promise.resolve()).catch(() => {})\n    throw error',
    joined,
  ],
  [
    'once-joined.ts',
    'an outcome is stored before it is parsed',
    'await parseStored(call.spec.result,',
    'void (call.spec.result,',
    joined,
  ],
  [
    'once-joined.ts',
    'the loss of a claim inside is not seen',
    "if (row.state !== 'stored') throw",
    'if (false) throw',
    joined,
  ],
  [
    'once-leased.ts',
    'a late holder is given its own outcome',
    'if (isOurs) return call.answer(readClaim(row), false)',
    'return call.answer(readClaim(row), false)',
    leased,
  ],
  ['once-leased.ts', 'hold: any error releases', 'mayHaveHappened ? 0 : retryInMs', 'retryInMs', leased],
  [
    'once-leased.ts',
    'a final error releases',
    'if (isTerminalError(error, isTerminal)) {',
    'if (false) {',
    leased,
  ],
  [
    'once-leased.ts',
    'an outcome that is no JSON releases',
    "await claim.finish('failed', storeFailure(error))\n    throw error\n  }\n  return",
    'await claim.end(null)\n    throw error\n  }\n  return',
    leased,
  ],
  [
    'held-claim.ts',
    'the claim is released though the work was done',
    '      throw new OutcomeNotStoredError',
    '      await this.end(null)\n      throw new OutcomeNotStoredError',
    leased,
  ],
  [
    'held-claim.ts',
    'an answer that is lost is not asked for again',
    'const MAX_TRIES = 5',
    'const MAX_TRIES = 1',
    leased,
  ],
  ['held-claim.ts', 'a step is done again', 'if (known !== undefined) return', 'if (false) return', leased],
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
].map(([file, name, from, to, tests]) => ({ name: `once: ${name}`, file: claims(file), from, to, tests }))

/** @type {import('./mutation.mjs').Mutation[]} */
const below = [
  [
    'transaction.ts',
    'a replay waits for its rollback',
    'connections.finish(checkout.rollback())',
    'await checkout.rollback()',
    joined,
  ],
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
].map(([file, name, from, to, tests]) => ({
  name: `once: ${name}`,
  file: `src/postgres/${file}`,
  from,
  to,
  tests,
}))

export const onceMutations = [...inSql, ...clocks, ...around, ...below]
