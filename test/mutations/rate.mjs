// Guards of `dibs.rateLimit`.
import { claims, inFunction } from './mutation.mjs'

const sql = 'sql/0010_rate.sql'
const rateTests = [claims('rate-limit.test.ts')]
const modeled = [claims('rate-limit.property.test.ts')]
const explored = [claims('rate.explore.test.ts')]
const cut = [claims('rate-limit.cut.test.ts')]
const local = [claims('rate-local.test.ts')]
const watch = [claims('store-watch.test.ts')]
const batches = [claims('batches.test.ts')]

const clock = '  v_now_us := {schema}.micros({schema}.clock());\n'
/** All of `rate_take` between the bound of its waits and the clock. */
const locking = `  for v_try in 1 .. 10 loop
    if p_wait_ms is distinct from 0 then
      select r.* into v_row from {schema}.rate r
      where r.name = p_name and r.subject = p_subject and r.rule = p_rule for no key update;
    else
      -- point: before the lock at once
      select r.* into v_row from {schema}.rate r
      where r.name = p_name and r.subject = p_subject and r.rule = p_rule for no key update skip locked;
    end if;
    exit when v_row.name is not null;
    -- point: nothing to lock
    if {schema}.rate_make(p_name, p_subject, p_rule, p_per_us, p_wait_ms) then
      return '{"state": "busy"}';
    end if;
    -- Ours, or another's, or gone again.
    -- point: made
  end loop;
`

/** @type {import('./mutation.mjs').Mutation[]} */
export const rateMutations = [
  {
    name: 'rate: joined: waits that end late outlast their statement',
    file: sql,
    from: '{schema}.left_of_wait(v_left_ms - v_part_ms, v_wait_end)',
    to: 'v_left_ms - v_part_ms',
    tests: [claims('quota.joined.test.ts')],
  },
  {
    name: 'rate: subjects are not unique',
    file: sql,
    from: '  primary key (name, subject, rule)\n',
    to: '  unique (name, subject, rule, at_us, level)\n',
    tests: explored,
  },
  {
    name: 'rate: another period goes on with the same row',
    file: sql,
    from: 'primary key (name, subject, rule)',
    to: 'primary key (name, subject)',
    tests: rateTests,
  },
  {
    name: 'rate: subjects are sorted as the database does',
    file: sql,
    from: 'subject text collate "C" not null',
    to: 'subject text not null',
    tests: ['src/postgres/migrations/schema.test.ts'],
  },
  {
    name: 'rate: a row is read and not locked',
    file: sql,
    from: inFunction('rate_take', ' for no key update;'),
    to: ';',
    tests: explored,
  },
  {
    name: 'rate: at once: a row is read and not locked',
    file: sql,
    from: inFunction('rate_take', ' for no key update skip locked;'),
    to: ';',
    tests: rateTests,
  },
  {
    name: 'rate: at once: waits for a row',
    file: sql,
    from: inFunction('rate_take', ' for no key update skip locked;'),
    to: ' for no key update;',
    tests: rateTests,
  },
  {
    name: 'rate: at once: a row that is locked counts as missing',
    file: sql,
    from: inFunction('rate_make', 'found or '),
    to: '',
    tests: rateTests,
  },
  {
    name: 'rate: at once: waits for one who makes the row',
    file: sql,
    from: inFunction('rate_make_at_once', '  perform {schema}.bound(2);\n'),
    to: '',
    tests: rateTests,
  },
  {
    name: 'rate: at once: a short wait ends the transaction',
    file: sql,
    from: inFunction('rate_make_at_once', 'exception when lock_not_available then'),
    to: 'exception when division_by_zero then',
    tests: rateTests,
  },
  {
    name: "rate: at once: the caller's lock_timeout is lost",
    file: sql,
    from: inFunction('rate_make_at_once', '  set lock_timeout = 0\n'),
    to: '',
    tests: rateTests,
  },
  {
    name: 'rate: at once: a row that another has made is an error',
    file: sql,
    from: inFunction('rate_make_at_once', '\n  on conflict do nothing'),
    to: '',
    tests: explored,
  },
  {
    name: 'rate: a row that another has made is an error',
    file: sql,
    from: inFunction('rate_make', '\n    on conflict do nothing'),
    to: '',
    tests: explored,
  },
  {
    name: 'rate: a row that was made is not looked for',
    file: sql,
    from: inFunction('rate_take', 'for v_try in 1 .. 10 loop'),
    to: 'for v_try in 1 .. 1 loop',
    tests: explored,
  },
  {
    name: 'rate: a row that cannot be had is as good as one',
    file: sql,
    from: inFunction('rate_take', '  if v_row.name is null then'),
    to: '  if false then',
    tests: rateTests,
  },
  {
    name: 'rate: waits without a bound',
    file: sql,
    from: inFunction('rate_take', '    perform {schema}.bound(p_wait_ms);\n'),
    to: '    null;\n',
    tests: rateTests,
  },
  {
    name: 'rate: the clock is read before the lock',
    file: sql,
    from: `${locking}${clock}`,
    to: `${clock}${locking}`,
    tests: rateTests,
  },
  {
    name: 'rate: writes when everything was refused',
    file: sql,
    from: inFunction('rate_take', '  if v_then.taken > 0 then'),
    to: '  if true then',
    tests: rateTests,
  },
  {
    name: 'rate: expiry changes with each take',
    file: sql,
    from: inFunction('rate_take', 'case when v_row.expires_at >= v_until then'),
    to: 'case when false then',
    tests: rateTests,
  },
  {
    name: 'rate: expiry is not put off',
    file: sql,
    from: inFunction('rate_take', 'case when v_row.expires_at >= v_until then'),
    to: 'case when true then',
    tests: rateTests,
  },
  {
    name: 'rate: everything fits',
    file: sql,
    from: inFunction('rate_decide', 'if p_costs[v_n] * p_per_us <= v_room then'),
    to: 'if true then',
    tests: rateTests,
  },
  {
    name: 'rate: what fits exactly is refused',
    file: sql,
    from: inFunction('rate_decide', 'if p_costs[v_n] * p_per_us <= v_room then'),
    to: 'if p_costs[v_n] * p_per_us < v_room then',
    tests: rateTests,
  },
  {
    name: 'rate: costs of one statement do not count for each other',
    file: sql,
    from: inFunction('rate_decide', 'if p_costs[v_n] * p_per_us <= v_room then'),
    to: 'if p_costs[v_n] * p_per_us <= taken then',
    tests: rateTests,
  },
  {
    name: 'rate: a refusal consumes',
    file: sql,
    from: inFunction('rate_decide', '      v_is_refused[v_n] := true;\n'),
    to: '      v_is_refused[v_n] := true;\n      taken := taken + p_costs[v_n] * p_per_us;\n',
    tests: rateTests,
  },
  {
    name: 'rate: time goes back',
    file: sql,
    from: inFunction('rate_decide', 'greatest(p_now_us, at_us)'),
    to: 'p_now_us',
    tests: modeled,
  },
  {
    name: 'rate: a long rest leaves a bigint',
    file: sql,
    from: inFunction(
      'rate_decide',
      'case when v_now_us - at_us > level / p_limit then 0 else level - (v_now_us - at_us) * p_limit end',
    ),
    to: 'greatest(0, level - (v_now_us - at_us) * p_limit)',
    tests: modeled,
  },
  {
    name: 'rate: a bucket is as large as its limit',
    file: sql,
    from: inFunction('rate_decide', '    v_room := p_burst * p_per_us - level;'),
    to: '    v_room := p_limit * p_per_us - level;',
    tests: rateTests,
  },
  {
    name: 'rate: a sliding window forgets the one before',
    file: sql,
    from: inFunction('rate_decide', "p_algorithm = 'sliding-window' and v_now_us - at_us < 2 * p_per_us"),
    to: 'false',
    tests: rateTests,
  },
  {
    name: 'rate: a sliding window counts one of long ago',
    file: sql,
    from: inFunction('rate_decide', ' and v_now_us - at_us < 2 * p_per_us then'),
    to: ' then',
    tests: rateTests,
  },
  {
    name: 'rate: a fixed window slides',
    file: sql,
    from: inFunction('rate_decide', "p_algorithm = 'sliding-window' and v_now_us - at_us < 2 * p_per_us"),
    to: 'v_now_us - at_us < 2 * p_per_us',
    tests: rateTests,
  },
  {
    name: 'rate: a wait is told by a clock that stands still',
    file: sql,
    from: inFunction('rate_decide', 'at_us - p_now_us + case'),
    to: 'at_us - v_now_us + case',
    tests: rateTests,
  },
  {
    name: 'rate: a wait of a bucket is rounded down',
    file: sql,
    from: inFunction('rate_decide', '- v_room + p_limit - 1) / p_limit'),
    to: '- v_room) / p_limit',
    tests: modeled,
  },
  {
    name: 'rate: a wait of a sliding window ends with the window',
    file: sql,
    from: inFunction('rate_decide', 'p_per_us - ((p_limit - p_costs[v_n]) * p_per_us - level) / previous'),
    to: 'p_per_us',
    tests: rateTests,
  },
  {
    name: 'rate: what is given back is more than was taken',
    file: sql,
    from: inFunction('rate_give_back', 'greatest(0, r.level - p_cost * p_per_us)'),
    to: 'r.level - p_cost * p_per_us',
    tests: rateTests,
  },
  {
    name: 'rate: maintenance does not lock what it removes',
    file: sql,
    from: inFunction('rate_forget_expired', '\n    for update skip locked'),
    to: '',
    tests: rateTests,
  },
  {
    name: 'rate: maintenance waits',
    file: sql,
    from: inFunction('rate_forget_expired', ' skip locked'),
    to: '',
    tests: rateTests,
  },
  {
    name: 'rate: maintenance has no batch',
    file: sql,
    from: inFunction('rate_forget_expired', ' limit p_limit'),
    to: '',
    tests: rateTests,
  },
  {
    name: 'rate: maintenance removes what still counts',
    file: sql,
    from: inFunction('rate_forget_expired', 'where e.expires_at <= v_now'),
    to: 'where true',
    tests: rateTests,
  },
  {
    name: 'rate: limits are as large as you like',
    file: claims('rate-spec.ts'),
    from: 'Math.max(limit, capacity) * perMs > MAX_PRODUCT',
    to: 'false',
    tests: rateTests,
  },
  {
    name: 'rate: a cost that never fits is asked for',
    file: claims('rate-spec.ts'),
    from: 'if (cost > capacity)',
    to: 'if (false)',
    tests: rateTests,
  },
  {
    name: 'rate: a window has a burst',
    file: claims('rate-spec.ts'),
    from: 'if (!isBucket)',
    to: 'if (false)',
    tests: rateTests,
  },
  {
    name: 'rate: waits are rounded down',
    file: claims('rate-limit.ts'),
    from: 'const toMs = (us: number): number => Math.ceil(us / 1_000)',
    to: 'const toMs = (us: number): number => Math.floor(us / 1_000)',
    tests: rateTests,
  },
  {
    name: 'rate: a wait that has ended is an error of the server',
    file: claims('rate-limit.ts'),
    from: 'if (!isGivenUp && !hasWaited) throw error',
    to: 'throw error',
    tests: rateTests,
  },
  {
    name: 'rate: those in line are turned away before it shows that the store is down',
    file: claims('rate-limit.ts'),
    from: "ifDown === 'fail' ? waitMs : Math.min(waitMs + downAfterMs, MAX_TIMER_MS)",
    to: 'waitMs',
    tests: cut,
  },
  {
    name: 'rate: those in line wait for the row that much longer',
    file: claims('rate-limit.ts'),
    from: 'Math.min(waitMs, spec.waitMs)',
    to: 'waitMs',
    tests: cut,
  },
  {
    name: 'rate: a store that is left alone is waited for',
    file: claims('rate-limit.ts'),
    from: '      this.#watch?.assertUp()\n',
    to: '',
    tests: cut,
  },
  {
    name: 'rate: closed is open',
    file: claims('rate-limit.ts'),
    from: "if (spec.ifDown !== 'fail')",
    to: 'if (true)',
    tests: cut,
  },
  {
    name: 'rate: local is open',
    file: claims('rate-limit.ts'),
    from: "if (spec.ifDown === 'local')",
    to: 'if (false)',
    tests: cut,
  },
  {
    name: 'rate: any error counts as down',
    file: claims('store-watch.ts'),
    from: 'if (!isAway(error)) {',
    to: 'if (false) {',
    tests: watch,
  },
  {
    name: 'rate: a lock that another holds counts as down',
    file: claims('store-watch.ts'),
    from: ' && error.sqlState === undefined)',
    to: ')',
    tests: watch,
  },
  {
    name: 'rate: all try a store at once',
    file: claims('store-watch.ts'),
    from: '    if (this.#failure) this.#rest()\n',
    to: '',
    tests: watch,
  },
  {
    name: 'rate: a store that answers stays down',
    file: claims('store-watch.ts'),
    from: '      this.#failure = undefined\n      return answer',
    to: '      return answer',
    tests: watch,
  },
  {
    name: 'rate: silence is waited for',
    file: claims('store-watch.ts'),
    from: 'await withTimeout(fn(), this.#downAfterMs, fail)',
    to: 'await withTimeout(fn(), Number.POSITIVE_INFINITY, fail)',
    tests: watch,
  },
  {
    name: 'rate: local: memory grows without end',
    file: claims('rate-local.ts'),
    from: ' || this.#rates.size > this.#most',
    to: '',
    tests: local,
  },
  {
    name: 'rate: local: idle subjects stay',
    file: claims('rate-local.ts'),
    from: 'until <= nowUs || ',
    to: '',
    tests: local,
  },
  {
    name: 'rate: local: those that came first go first, used or not',
    file: claims('rate-local.ts'),
    from: '      this.#rates.delete(subject)\n      this.#rates.set',
    to: '      this.#rates.set',
    tests: local,
  },
  {
    name: 'rate: local: time goes back',
    file: claims('rate-local.ts'),
    from: 'bring(spec, before, most(nowUs, before.at))',
    to: 'bring(spec, before, nowUs)',
    tests: modeled,
  },
  {
    name: 'rate: batches: what gathers is not sent together',
    file: claims('batches.ts'),
    from: '.slice(0, most)',
    to: '.slice(0, 1)',
    tests: batches,
  },
  {
    name: 'rate: batches: as large as they come',
    file: claims('batches.ts'),
    from: '.slice(0, most)',
    to: '',
    tests: batches,
  },
  {
    name: 'rate: batches: whoever was turned away is sent all the same',
    file: claims('batches.ts'),
    from: '        others.delete(one)\n        if (others',
    to: '        if (others',
    tests: batches,
  },
  {
    name: 'rate: batches: whoever was sent is turned away',
    file: claims('batches.ts'),
    from: '      clearTimeout(one.timer)\n',
    to: '',
    tests: batches,
  },
  {
    name: 'rate: batches: a key stays',
    file: claims('batches.ts'),
    from: '    else this.#gathering.delete(key)\n',
    to: '',
    tests: batches,
  },
  {
    name: 'rate: batches: a wait is that of the statement',
    file: claims('batches.ts'),
    from: 'Math.max(error.waitedMs, Math.round(performance.now() - since))',
    to: 'error.waitedMs',
    tests: batches,
  },
  {
    name: 'rate: batches: the key of one who was turned away stays',
    file: claims('batches.ts'),
    from: 'if (others.size === 0 && this.#ready.delete(key)) this.#gathering.delete(key)',
    to: '',
    tests: batches,
  },
  {
    name: 'rate: batches: a key is sent twice at a time',
    file: claims('batches.ts'),
    from: '    this.#ready.delete(key)\n    return { key',
    to: '    return { key',
    tests: batches,
  },
  {
    name: 'rate: batches: any number is on its way',
    file: claims('batches.ts'),
    from: 'this.#sendMany ? LANES : Number.POSITIVE_INFINITY',
    to: 'Number.POSITIVE_INFINITY',
    tests: batches,
  },
  {
    name: 'rate: batches: what is locked holds up its lane',
    file: claims('batches.ts'),
    from: 'if (groups.length > 1) leave()\n',
    to: '',
    tests: batches,
  },
  {
    name: 'rate: batches: what is locked is dropped',
    file: claims('batches.ts'),
    from: 'return !answered\n',
    to: 'return false\n',
    tests: batches,
  },
  {
    name: 'rate: batches: one that is refused fails all',
    file: claims('batches.ts'),
    from: 'if (refusals.some((type) => error instanceof type)) return groups\n',
    to: '',
    tests: batches,
  },
  {
    name: 'rate: batches: the least patient decides',
    file: claims('batches.ts'),
    from: 'Math.max(...batch.map(({ until }) => until))',
    to: 'Math.min(...batch.map(({ until }) => until))',
    tests: batches,
  },
  {
    name: 'rate: batches: an answer that is missing is undefined',
    file: claims('batches.ts'),
    from: 'answers.length === batch.length\n',
    to: 'answers.length >= 0\n',
    tests: batches,
  },
]
