// Guards of `dibs.singleton`, `dibs.voidSlot`, `dibs.acquire` and the lock table: first those in SQL, then those around it.
import { about, claims, inFunction } from './mutation.mjs'

const locks = ['src/locks/lock-table.test.ts']
const joined = [claims('acquire.test.ts')]
const leased = [claims('acquire-leased.test.ts')]
const slots = [claims('singleton.test.ts')]
const leasedSlots = [claims('singleton-leased.test.ts')]
const explored = [claims('acquire.explore.test.ts')]
const exploredSlots = [claims('singleton.explore.test.ts')]
const edges = [claims('acquire-edges.test.ts')]
const exploredHolds = [claims('acquire-holds.explore.test.ts')]
const exploredRates = [claims('acquire-rates.explore.test.ts')]
const holds = [claims('acquire-holds.test.ts')]
const cut = [claims('acquire.cut.test.ts')]

const take = (text) => inFunction('lock_take', text)
const slot = (text) => inFunction('singleton_take', text)
const acquire = (text) => inFunction('acquire', text)
const end = (text) => inFunction('acquire_end', text)
const renew = (text) => inFunction('acquire_renew', text)
const undo = (text) => inFunction('singleton_void', text)
const renewHold = (text) => inFunction('quota_renew_hold', text)
const endHold = (text) => inFunction('quota_end_hold', text)
const rearm = (text) => inFunction('quota_rearm', text)

/** @type {[name: string, from: string | RegExp, to: string, tests: string[]][]} */
const inLockSql = [
  ['lock: names are not unique', '  primary key (name, permit),', '', locks],
  ['lock: the fence is no part of a key', '  unique (name, permit, fence)', '  check (fence > 0)', locks],
  ['lock take: waits behind whoever guards it', take(' for update skip locked;'), ' for update;', locks],
  [
    'lock take: a guard is no obstacle',
    take(' for update skip locked;'),
    ' for no key update skip locked;',
    locks,
  ],
  [
    'lock take: nothing is locked before it is taken over',
    take(' for update skip locked;'),
    ';',
    [...joined, ...explored],
  ],
  [
    'lock take: a live lease is no obstacle',
    take('    if v_lock.expires_at > v_now then'),
    '    if false then',
    locks,
  ],
  [
    'lock take: nobody knows its lock again',
    take('if v_lock.holder = v_holder then'),
    'if false then',
    locks,
  ],
  [
    'lock take: everybody takes the lock for its own',
    take('if v_lock.holder = v_holder then'),
    'if true then',
    locks,
  ],
  [
    'lock take: what was renewed meanwhile is taken over',
    take('    continue when v_lock.expires_at > v_now;\n'),
    '',
    explored,
  ],
  [
    'lock take: a takeover keeps the fence',
    take('fence = {schema}.next_fence(l.fence, v_now), acquired_at'),
    'acquired_at',
    locks,
  ],
  [
    'lock take: waits for whoever makes it',
    take('perform {schema}.bound(10);'),
    'perform {schema}.bound(5000);',
    joined,
  ],
  ['lock take: the time to wait stays in the transaction', take('  set lock_timeout = 0\n'), '', locks],
  [
    'lock take: one of a transaction has a lease',
    take("coalesce(v_now + p_lease_ms * interval '1 millisecond', '-infinity'), v_now)"),
    "coalesce(v_now + p_lease_ms * interval '1 millisecond', v_now + interval '1 hour'), v_now)",
    joined,
  ],
  ['lock state: any fence will do', 'when v_lock.fence = p_fence then', 'when true then', locks],
  [
    'lock state: a release is not known again',
    "when v_lock.holder = p_holder and v_lock.expires_at = '-infinity' then",
    'when false then',
    locks,
  ],
  ['lock state: everybody has released it', 'when v_lock.holder = p_holder and v_lock', 'when v_lock', locks],
  [
    'lock state: who holds it has released it',
    " and v_lock.expires_at = '-infinity' then 'released'",
    " then 'released'",
    locks,
  ],
  [
    'lock state: its row is not locked',
    inFunction('lock_state', ' for no key update;'),
    ';',
    [...locks, ...explored],
  ],
  [
    'lock renew: what is lost is renewed',
    inFunction('lock_renew', "if v_state = 'held' then"),
    'if true then',
    locks,
  ],
  [
    'lock renew: the clock is read before the lock',
    inFunction(
      'lock_renew',
      `  v_state text := {schema}.lock_state(p_name, p_permit, p_holder, p_fence);
  v_now timestamptz := {schema}.clock();`,
    ),
    `  v_now timestamptz := {schema}.clock();
  v_state text := {schema}.lock_state(p_name, p_permit, p_holder, p_fence);`,
    locks,
  ],
  [
    'lock release: what is lost is released',
    inFunction('lock_release', "if v_state = 'held' then"),
    'if true then',
    locks,
  ],
  [
    'lock release: keeps the fence',
    inFunction('lock_release', 'fence = {schema}.next_fence(l.fence, v_now), '),
    '',
    locks,
  ],
  ['lock forget: what is used is removed', "i.expires_at <= v_now - interval '1 day' and ", '', locks],
  [
    'lock forget: what was had lately is removed',
    " and i.acquired_at <= v_now - interval '1 day'",
    '',
    locks,
  ],
  ['lock forget: waits', inFunction('lock_forget', ' for update skip locked'), ' for update', locks],
]

/** @type {[name: string, from: string | RegExp, to: string, tests: string[]][]} */
const inSql = [
  [
    'acquire: refused claims stay',
    acquire(`      if v_is_refused then
        raise exception 'refused' using errcode = 'DIB02';
      end if;`),
    '',
    joined,
  ],
  [
    'acquire: a refusal that may pass is stored',
    acquire('      if not v_is_final then'),
    '      if false then',
    joined,
  ],
  [
    'acquire: a final refusal is not stored',
    acquire('      if not v_is_final then'),
    '      if true then',
    joined,
  ],
  [
    'acquire: a replay looks at the rest',
    acquire("if v_once ->> 'state' not in ('claimed', 'taken over') then"),
    'if false then',
    joined,
  ],
  [
    'acquire: the first that is refused is the only one told',
    acquire('        v_is_refused := v_is_refused or not'),
    '        exit when v_is_refused;\n        v_is_refused := v_is_refused or not',
    joined,
  ],
  [
    'acquire: only the last decides',
    acquire('v_is_refused := v_is_refused or not'),
    'v_is_refused := not',
    joined,
  ],
  [
    'acquire: only the last is final',
    acquire('v_is_final := v_is_final or (v_one'),
    'v_is_final := (v_one',
    joined,
  ],
  [
    'acquire: what has no slot is stored',
    acquire('      v_is_final := v_is_final and not v_is_moot;\n'),
    '',
    joined,
  ],
  [
    'acquire: others than the first wait too',
    acquire('when v_is_refused then 1 else 10 end'),
    'else 5000 end',
    joined,
  ],
  [
    'acquire: nobody waits',
    acquire('pg_catalog.cardinality(v_results) = 0 then p_wait_ms'),
    'pg_catalog.cardinality(v_results) = 0 then 10',
    slots,
  ],
  [
    'acquire: an attempt whose answer was lost counts twice',
    inFunction('acquire_one', "elsif v_kind = 'rate' and p_is_known then"),
    'elsif false then',
    leased,
  ],
  [
    'acquire: a reservation has another id in each attempt',
    acquire("coalesce(v_once ->> 'id', p_holder) || ':'"),
    "p_holder || ':'",
    leased,
  ],
  [
    'acquire: a reservation has the id of its place in the list',
    acquire('pg_catalog.cardinality(v_results) end),'),
    "(v_item ->> 'index') end),",
    leased,
  ],
  [
    'acquire: a lease begins before the wait',
    acquire('          v_from := pg_catalog.clock_timestamp();\n        end if;'),
    '        end if;',
    leasedSlots,
  ],
  [
    'acquire: what was given up is not kept',
    acquire('  if v_is_refused then\n    perform {schema}.singleton_give_up'),
    '  if false then\n    perform {schema}.singleton_give_up',
    leasedSlots,
  ],
  [
    'give up: whatever became of the slot',
    inFunction('singleton_give_up', "<> 'gave up' then"),
    "= 'nothing' then",
    exploredSlots,
  ],
  [
    'acquire one: a lock that is held is granted',
    "'granted', v_state = 'taken', 'isBusy', false, 'isFinal', false, 'state', v_state, 'lock', v_told);",
    "'granted', true, 'isBusy', false, 'isFinal', false, 'state', v_state, 'lock', v_told);",
    joined,
  ],
  [
    'acquire one: a quota that is full is final',
    "'isBusy', v_state = 'busy', 'isFinal', false, 'state', v_state,\n      'id'",
    "'isBusy', v_state = 'busy', 'isFinal', v_state = 'refused', 'state', v_state,\n      'id'",
    joined,
  ],
  [
    'acquire one: a quota that is busy is not',
    "'isBusy', v_state = 'busy', 'isFinal', false, 'state', v_state,\n      'id'",
    "'isBusy', false, 'isFinal', false, 'state', v_state,\n      'id'",
    joined,
  ],
  [
    'acquire one: what was reserved before is not renewed',
    "    if v_state in ('known', 'mismatch') and p_lease_ms is not null then",
    '    if false then',
    leased,
  ],
  [
    'singleton: one under a lease is final',
    slot("'isFinal', v_state in ('replayed', 'gave up')"),
    "'isFinal', v_state in ('replayed', 'gave up', 'in progress')",
    leased,
  ],
  [
    'singleton: one that is done is not final',
    slot("'isFinal', v_state in ('replayed', 'gave up')"),
    "'isFinal', false",
    joined,
  ],
  ['singleton: nobody says who', slot("'by', p_item -> 'by', "), "'by', null, ", slots],
  [
    'singleton: since the first attempt',
    slot("'since', {schema}.micros({schema}.clock()))"),
    "'since', {schema}.micros(c.created_at))",
    leasedSlots,
  ],
  [
    'singleton: a slot is kept so long after its use',
    slot('ceil(pg_catalog.date_part'),
    '0 * ceil(pg_catalog.date_part',
    slots,
  ],
  ['singleton: attempts are not capped', slot("(p_item ->> 'maxLost')::integer"), '1000', leasedSlots],
  [
    'singleton: what may have failed is done again',
    slot("(p_item ->> 'hold')::boolean"),
    'false',
    leasedSlots,
  ],
  [
    'singleton: running out of time fails',
    slot('exception when lock_not_available then'),
    "exception when sqlstate 'DIB99' then",
    slots,
  ],
  ['rearm: what is used is used again', rearm("v_entry.state in ('taken', 'refunded') or "), '', leased],
  ['rearm: what was refunded is used again', rearm("in ('taken', 'refunded')"), "in ('taken')", leased],
  [
    'rearm: what has run out is held',
    rearm("v_entry.state = 'held' and v_entry.expires_at > v_now"),
    "v_entry.state in ('held', 'expired', 'void')",
    leased,
  ],
  [
    'rearm: the end is not put off',
    rearm("expires_at = v_now + p_lease_ms * interval '1 millisecond'"),
    'expires_at = e.expires_at',
    leased,
  ],
  [
    'state: one that is lost is not enough',
    inFunction('acquire_state', "v_is_lost or v_state = 'lost'"),
    'v_is_lost',
    leased,
  ],
  [
    'state: claims are not looked at',
    inFunction(
      'acquire_state',
      "when 'claim' then {schema}.claim_lock(v_grant ->> 'scope', v_grant ->> 'key', (v_grant ->> 'fence')::bigint, null)",
    ),
    "when 'claim' then 'held'",
    leased,
  ],
  [
    'state: locks are not looked at',
    inFunction(
      'acquire_state',
      "when 'lock' then {schema}.lock_state(v_grant ->> 'name', 0, p_holder, (v_grant ->> 'fence')::bigint)",
    ),
    "when 'lock' then 'held'",
    leased,
  ],
  ['end: what is lost is ended', end("  elsif v_state = 'lost' then"), '  elsif false then', leased],
  [
    'end: a reservation that is another’s is no loss',
    end('case when v_is_lost and not {schema}.acquire_is_fenced(p_grants)'),
    'case when false',
    holds,
  ],
  [
    'end: a lost reservation costs the key',
    end('v_is_lost and not {schema}.acquire_is_fenced(p_grants)'),
    'v_is_lost',
    holds,
  ],
  [
    'end: a reservation that is left is forgotten',
    end("if v_hold = 'unsettled' and p_is_done then"),
    'if false then',
    holds,
  ],
  ['end of a hold: whosever it is', endHold('v_entry.holder is distinct from p_holder or '), '', holds],
  [
    'end of a hold: waits for the entry',
    endHold('v_id for no key update skip locked;'),
    'v_id for no key update;',
    holds,
  ],
  [
    'end of a hold: waits for the row',
    endHold('v_subject for no key update skip locked;'),
    'v_subject for no key update;',
    holds,
  ],
  [
    'end of a hold: the entry is not locked',
    endHold('v_id for no key update skip locked;'),
    'v_id;',
    [...holds, ...exploredHolds],
  ],
  [
    'end of a hold: one that is locked is lost',
    endHold("case when found then 'unsettled' else 'lost' end"),
    "'lost'",
    holds,
  ],
  [
    'end of a hold: what has run out is charged to what is over',
    endHold('(v_row.window_id = v_entry.window_id and v_row.ends_at > v_now) is not true'),
    'false',
    holds,
  ],
  [
    'end of a hold: what nobody has used is another’s',
    endHold("and v_entry.state in ('void', 'expired') then"),
    'and false then',
    holds,
  ],
  [
    'end: what only its reservation knows to have ended is lost',
    end("  if v_state = 'lost' and p_is_done and {schema}.acquire_was_charged(p_grants, p_holder) then"),
    '  if false then',
    edges,
  ],
  ['end of a hold: what has failed is used', endHold('is_done = p_is_done,'), 'is_done = true,', holds],
  ['end of a hold: what is done runs out', endHold('is_done = p_is_done,'), 'is_done = false,', holds],
  [
    'end of a hold: what has failed is held on',
    endHold('expires_at = case when p_is_done then e.expires_at else v_now end'),
    'expires_at = e.expires_at',
    holds,
  ],
  [
    'end of a hold: what has run out is let go',
    endHold("or in a window that is over.\n    return 'unsettled';"),
    "\n    return 'ended';",
    holds,
  ],
  [
    'end of a hold: what nobody has used is let go',
    endHold("if not v_is_free then\n      return 'unsettled';"),
    "if not v_is_free then\n      return 'ended';",
    holds,
  ],
  [
    'end: claims are not released',
    end('      perform {schema}.claim_end('),
    '      perform pg_catalog.concat(',
    leased,
  ],
  [
    'end: locks are not given back',
    end('      perform {schema}.lock_release('),
    '      perform pg_catalog.concat(',
    leased,
  ],
  [
    'end: reservations are not ended',
    endHold('    perform {schema}.quota_resolve('),
    '    perform pg_catalog.concat(',
    leased,
  ],
  [
    'end: reservations are settled after a failure',
    endHold("case when p_is_done then 'settle' else 'void' end"),
    "'settle'",
    leased,
  ],
  ['end: what has run out is not charged', endHold("'overdraft'"), "'refuse'", leased],
  [
    'end: takes are not undone',
    end("elsif v_grant ->> 'kind' = 'take' and not p_is_done then"),
    'elsif false then',
    joined,
  ],
  [
    'end: takes are undone after success',
    end("'kind' = 'take' and not p_is_done then"),
    "'kind' = 'take' then",
    joined,
  ],
  [
    'renew: what is lost is renewed',
    renew("<> 'held' then\n    return 'lost';"),
    "= 'never' then\n    return 'lost';",
    leased,
  ],
  [
    'renew: claims are not',
    renew('      perform {schema}.claim_renew('),
    '      perform pg_catalog.concat(',
    leased,
  ],
  [
    'renew: locks are not',
    renew('      perform {schema}.lock_renew('),
    '      perform pg_catalog.concat(',
    leased,
  ],
  [
    'renew: reservations are not',
    renew('{schema}.quota_renew_hold(v_grant, p_holder, p_lease_ms);'),
    'true;',
    leased,
  ],
  ['renew: a reservation that is over', renewHold("v_entry.state <> 'held' or"), 'false or', holds],
  [
    'renew: a reservation that is another’s',
    renewHold(' or v_entry.holder is distinct from p_holder'),
    '',
    holds,
  ],
  [
    'renew: waits for a reservation',
    renewHold('for no key update skip locked;'),
    'for no key update;',
    holds,
  ],
  [
    'renew: what is locked at this moment is lost',
    renewHold('if not found then\n    return true;'),
    'if not found then\n    return false;',
    holds,
  ],
  [
    'renew: a reservation from before the lock',
    renewHold('v_now := {schema}.clock();'),
    'v_now := pg_catalog.now();',
    holds,
  ],
  [
    'renew: a lost reservation is no loss',
    renew('if not v_is_held and not {schema}.acquire_is_fenced(p_grants) then'),
    'if false then',
    holds,
  ],
  [
    'renew: a lost reservation costs the key',
    renew('if not v_is_held and not {schema}.acquire_is_fenced(p_grants) then'),
    'if not v_is_held then',
    holds,
  ],
  [
    'one: a rate limit that refuses is granted',
    inFunction('acquire_one', "'granted', (v_take ->> 'granted')::boolean, 'isBusy'"),
    "'granted', true, 'isBusy'",
    exploredRates,
  ],
  [
    'one: a rate limit is waited for',
    inFunction('acquire_one', "array[(p_item ->> 'cost')::bigint], 0)"),
    "array[(p_item ->> 'cost')::bigint], null)",
    exploredRates,
  ],
  [
    'end: a rate limit is not given back',
    end("elsif v_grant ->> 'kind' = 'rate' and not p_is_done then"),
    'elsif false then',
    exploredRates,
  ],
  [
    'end: a rate limit is given back by who is done',
    end("elsif v_grant ->> 'kind' = 'rate' and not p_is_done then"),
    "elsif v_grant ->> 'kind' = 'rate' then",
    exploredRates,
  ],
  ['rearm: what is done is made anew', rearm('v_entry.is_done or '), '', holds],
  [
    'rearm: what another call has is taken from it',
    rearm(
      "elsif v_is_live and p_item ->> 'id' is not null and v_entry.holder is distinct from p_holder then",
    ),
    'elsif false then',
    holds,
  ],
  [
    'rearm: what was not used yet was used before',
    rearm("v_state := 'taken';"),
    "v_state := 'known';",
    leased,
  ],
  ['rearm: stays the earlier attempt’s', rearm(', holder = p_holder'), '', holds],
  ['void: nothing is locked', undo(' for update;'), ';', [...slots, ...exploredSlots]],
  ['void: by any id', undo(' or v_claim.id <> p_id'), '', slots],
  ['void: what is over too', undo(' or v_claim.expires_at <= v_now'), '', slots],
  [
    'void: what was given back is in progress',
    undo("\n      or v_claim.status = 'pending' and v_claim.holder = 'nobody' then"),
    ' then',
    slots,
  ],
  ['void: what is not done', undo("elsif v_claim.status = 'pending' then"), 'elsif false then', leasedSlots],
  [
    'void: a second time',
    undo("elsif v_claim.status = 'failed' and v_claim.outcome ->> 'name' = p_mark ->> 'name' then"),
    'elsif false then',
    slots,
  ],
  ['void: always frees', undo('elsif p_frees then'), 'elsif true then', slots],
  ['void: never frees', undo('elsif p_frees then'), 'elsif false then', slots],
  [
    'void: keeps a lock where it changes nothing',
    undo('    if v_told is not null then'),
    '    if v_told is not null then\n      return v_told;\n    end if;\n    if false then',
    slots,
  ],
  [
    'void: running out of time fails',
    undo('    when lock_not_available then'),
    "    when sqlstate 'DIB99' then",
    slots,
  ],
  ['void: the time to wait stays in the transaction', undo('  set lock_timeout = 0\n'), '', slots],
]

/** @type {[name: string, file: string, from: string | RegExp, to: string, tests: string[]][]} */
const around = [
  [
    'acquire leased: what was left is not charged later',
    'acquire-leased.ts',
    'unsettled.length > 0 && (await this.#settle(unsettled))',
    "unsettled.length > 0 && 'settled'",
    holds,
  ],
  [
    'acquire leased: nobody hears that an outcome is not stored',
    'acquire-leased.ts',
    'if (ending.isDone) {\n        call.once',
    'if (false) {\n        call.once',
    leased,
  ],
  [
    'acquire leased: a failure that cannot be said passes for work that is done',
    'acquire-leased.ts',
    'if (ending.isDone) {\n        call.once',
    'if (true) {\n        call.once',
    leased,
  ],
  [
    'acquire leased: a rate limit does not count the attempt',
    'acquire-call.ts',
    "return isLeased ? undefined : { kind: 'rate'",
    "return { kind: 'rate'",
    exploredRates,
  ],
  [
    'acquire claims: in the order given',
    'acquire-claims.ts',
    '        order.indexOf(a.claim.kind) - order.indexOf(b.claim.kind) ||\n        Buffer.compare(Buffer.from(nameOf(a.claim)), Buffer.from(nameOf(b.claim))) ||\n',
    '',
    explored,
  ],
  [
    'acquire claims: by kind alone',
    'acquire-claims.ts',
    '        Buffer.compare(Buffer.from(nameOf(a.claim)), Buffer.from(nameOf(b.claim))) ||\n',
    '',
    explored,
  ],
  [
    'acquire claims: twice the same',
    'acquire-claims.ts',
    "if (name !== '' && seen.has(name))",
    'if (false)',
    joined,
  ],
  ['acquire claims: anything', 'acquire-claims.ts', 'if (!isClaim(claim))', 'if (false)', joined],
  [
    'acquire claims: a kept slot is done again when nobody knows',
    'acquire-claims.ts',
    'hold: this.keeps,',
    'hold: false,',
    leasedSlots,
  ],
  [
    'acquire call: what is undecided is refused at once',
    'acquire-call.ts',
    'if (isUndecided && leftMs > 0)',
    'if (false)',
    joined,
  ],
  [
    'acquire call: waits also where one refuses',
    'acquire-call.ts',
    'refused.every(({ isBusy }) => isBusy)',
    'refused.some(({ isBusy }) => isBusy)',
    joined,
  ],
  [
    'acquire call: waits without end',
    'acquire-call.ts',
    'isUndecided && leftMs > 0',
    'isUndecided && leftMs > -60_000',
    joined,
  ],
  [
    'acquire call: a clock that differs has no slot',
    'acquire-call.ts',
    'if (lateClock) return this.#moveTo(lateClock)',
    'if (lateClock) this.#moveTo(lateClock)',
    slots,
  ],
  [
    'acquire call: a listed take has no id',
    'acquire-call.ts',
    'return isListed ? { id: this.#ids.get(index), ...claim.item() } : claim.item()',
    'return claim.item()',
    joined,
  ],
  [
    'acquire call: what was taken before is given back',
    'acquire-call.ts',
    "return one.state === 'known' ? undefined : { kind: 'take'",
    "return { kind: 'take'",
    joined,
  ],
  [
    'acquire call: no final error is stored',
    'acquire-call.ts',
    'once: this.once !== undefined && isTerminalError(error, this.once.spec.isTerminal)',
    'once: false',
    joined,
  ],
  [
    'acquire call: what cannot be kept is done',
    'acquire-call.ts',
    "(end.isUnkept ? 'failed' : 'active')",
    "'active'",
    leased,
  ],
  [
    'acquire joined: a kept failure keeps the writes too',
    'acquire-joined.ts',
    'tx.closeWith([UNDO, bindEnd(',
    'tx.closeWith([bindEnd(',
    slots,
  ],
  [
    'acquire joined: a conflict is kept',
    'acquire-joined.ts',
    '(!keeps.slots || isConflict(error))',
    '!keeps.slots',
    slots,
  ],
  [
    'acquire joined: a final refusal is rolled back',
    'acquire-joined.ts',
    "if (!(verdict.todo === 'refuse' && verdict.isStored)) tx.leave()",
    'tx.leave()',
    joined,
  ],
  [
    'acquire joined: its own work is not known again',
    'acquire-joined.ts',
    'if (this.#runs.size === 0) return undefined',
    'if (this.#runs.size >= 0) return undefined',
    cut,
  ],
  [
    'acquire joined: an unknown commit of what is not stored is repeated',
    'acquire-joined.ts',
    'error instanceof CommitOutcomeUnknownError && this.#call.stores',
    'error instanceof CommitOutcomeUnknownError',
    cut,
  ],
  [
    'acquire joined: after a failure all stays behind',
    'acquire-joined.ts',
    '    await end({\n      isDone: false,',
    '    if (error === call) await end({\n      isDone: false,',
    joined,
  ],
  [
    'acquire joined: does what was left for after a commit',
    'acquire-joined.ts',
    'tx.dropAfterCommits()',
    '',
    joined,
  ],
  [
    'acquire joined: a commit that goes on is in the way',
    'acquire-joined.ts',
    "one.kind === 'singleton' && one.error instanceof BusyError",
    'one.index < 0',
    cut,
  ],
  [
    'acquire leased: a lease is as old as the call',
    'acquire-leased.ts',
    '- Math.max(0, ...ages)',
    '',
    leased,
  ],
  ['acquire leased: a lock is as old as the call', 'acquire-leased.ts', 'claim ?? lock)', 'claim)', leased],
  [
    'acquire leased: is not renewed',
    'acquire-leased.ts',
    "return rows[0]?.state === 'held'",
    'return rows.length === 1',
    leased,
  ],
  [
    'acquire leased: who has lost it is told that it is done',
    'acquire-leased.ts',
    "!== 'lost') return value",
    "!== 'never') return value",
    leased,
  ],
  [
    'acquire leased: done work that cannot be kept is given back',
    'acquire-leased.ts',
    'isDone: true,\n        isUnkept: true,',
    'isDone: false,\n        isUnkept: true,',
    leased,
  ],
  [
    'acquire leased: with hold every error says so',
    'acquire-leased.ts',
    'this.#call.holds && !saysSo ? 0 : null',
    'null',
    leased,
  ],
  [
    'acquire told: a refusal is not known again',
    'acquire-told.ts',
    "stored?.name !== 'AcquireRefusedError'",
    'stored !== undefined',
    joined,
  ],
  [
    'acquire told: a void slot has failed',
    'acquire-told.ts',
    "state: failure?.name === VOID ? 'void' : claim.status",
    'state: claim.status',
    slots,
  ],
  [
    'singleton: waits as acquire does',
    'singleton.ts',
    "waitMs: waitMs ?? (mode === 'leased' ? 0 : 5_000) }",
    'waitMs: undefined }',
    slots,
  ],
  [
    'singleton: its one reason is one of several',
    'singleton.ts',
    'error instanceof AcquireRefusedError ? (error.failures[0]?.error ?? error) : error',
    'error',
    slots,
  ],
  [
    'void: runs its function in any case',
    'singleton.ts',
    "if (told.state !== 'voided') return { voided: false }",
    '',
    slots,
  ],
]

const named = (name) => (name.startsWith('acquire') ? name : `acquire, ${name}`)

/** @type {import('./mutation.mjs').Mutation[]} */
export const acquireMutations = [
  ...inLockSql.map(([name, from, to, tests]) => ({
    name: named(name),
    file: about('lock', from),
    from,
    to,
    tests,
  })),
  ...inSql.map(([name, from, to, tests]) => ({
    name: named(name),
    file: about(/acquire|singleton|quota_lease/, from),
    from,
    to,
    tests,
  })),
  ...around.map(([name, file, from, to, tests]) => ({
    name: named(name),
    file: claims(file),
    from,
    to,
    tests,
  })),
]
