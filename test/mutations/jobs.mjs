// Guards of jobs: what the table forbids, then how they are added, claimed, ended and operated on, in SQL; and what stands around that.
import { inFunction } from './mutation.mjs'

const test = (name) => `src/jobs/${name}.test.ts`
const table = [test('job-table')]
const functions = [test('job-functions')]
const claims = [test('claim.explore')]
const attempts = [test('attempt.explore')]

const inTable = 'sql/0020_job.sql'
const inAdd = 'sql/0021_job_add.sql'
const inClaim = 'sql/0022_job_claim.sql'
const inEnd = 'sql/0023_job_end.sql'
const inOperate = 'sql/0024_job_operate.sql'
const inRecover = 'sql/0025_job_recover.sql'

const FREE = 'num_nonnulls(worker, lease_until, started_at, cancel_at) = 0'
const of = (name) => (text) => inFunction(name, text)
const take = of('job_take')
const claim = of('job_claim')
const probe = of('job_probe')
const carefully = of('job_claim_carefully')
const promote = of('job_promote')
const expire = of('job_expire')
const complete = of('job_complete')
const succeed = of('job_succeed')
const wait = of('job_wait')
const completeOne = of('job_complete_one')
const settle = of('job_settle')
const settleOne = of('job_settle_one')
const beat = of('job_beat')
const tell = of('job_tell')
const recover = of('job_recover')
const lost = of('job_take_from_lost')
const strays = of('job_give_strays_back')
const cancel = of('job_cancel')
const redrive = of('job_redrive')
const discard = of('job_discard')
const pause = of('queue_pause')
const keep = of('job_history_keep')

/** @type {[name: string, from: string | RegExp | object, to: string, tests: string[]][]} */
const ofTable = [
  ['it waits, or is dead, and somebody has it', ` and ${FREE}`, '', table],
  [
    'it waits, or is dead, and is in no index, or another',
    "state || ' ' || listed = any ('{ready line,scheduled schedule,gated none,dead dead}')",
    "state = any ('{ready,scheduled,gated,dead}')",
    table,
  ],
  ['running, and in another index', "listed = any ('{line,none}') and ", '', table],
  ['dead of nothing', " and (state <> 'dead' or error is not null)", '', table],
  ['it runs, and nobody has it', ' and num_nulls(worker, lease_until, started_at) = 0', '', table],
  ['it runs without a fence', ' and fence > 0', '', table],
  ['it runs and was never begun', ' and attempt > 0', '', table],
  [
    'a state that nobody knows',
    "state || ' ' || listed = any (",
    "state = 'done' or state || ' ' || listed = any (",
    table,
  ],
  ['a claim without a higher fence', 'then new.fence <= old.fence', 'then false', table],
  ['a fence changes without a claim', 'else new.fence <> old.fence or ', 'else ', table],
  ['any step', "old.state <> new.state and old.state || ' '", "false and old.state || ' '", table],
  ...[
    ['scheduled', 'running'],
    ['gated', 'running'],
    ['gated', 'scheduled'],
    ['dead', 'running'],
    ['dead', 'scheduled'],
    ['dead', 'gated'],
  ].map(([from, to]) => [
    `from ${from} to ${to}`,
    "'{ready scheduled,",
    `'{${from} ${to},ready scheduled,`,
    table,
  ]),
  [
    'a job is born in any state',
    "when (new.state in ('running', 'dead') or new.fence <> 0)",
    'when (new.fence <> 0)',
    table,
  ],
  ['a job is born with a fence', ' or new.fence <> 0)', ')', table],
  [
    'a day of history is made without a turn',
    '  lock table {schema}.job_history in share update exclusive mode;\n',
    '',
    table,
  ],
  [
    'a day of history is not looked for in turn',
    /is not null then\n {4}return;\n {2}end if;\n {2}-- point: before the table/,
    'is not null and false then\n    return;\n  end if;\n  -- point: before the table',
    table,
  ],
  ['history is dropped a day too early', keep("'YYYYMMDD') <= (v_now"), "'YYYYMMDD') <= 1 + (v_now", table],
  ['history is dropped a day too late', keep("'YYYYMMDD') <= (v_now"), "'YYYYMMDD') < (v_now", table],
  ['days ahead are waited for for ever', keep('perform {schema}.bound(5000);'), '', [test('outages')]],
  ['no days ahead', keep('pg_catalog.generate_series(0, 2)'), 'pg_catalog.generate_series(0, 1)', table],
  [
    'history is dropped by several at once',
    keep("not pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended('{schema}:job_history', 0))"),
    'false',
    table,
  ],
  ['a drop waits for as long as it takes', keep('  perform {schema}.bound(p_wait_ms);\n'), '', table],
  [
    'a drop that waits too long fails all',
    keep('lock_not_available or undefined_table'),
    'undefined_table',
    table,
  ],
  [
    'a day that another has dropped fails all',
    keep('lock_not_available or undefined_table'),
    'lock_not_available',
    table,
  ],
]

/** @type {typeof ofTable} */
const ofAdding = [
  [
    'a lane is made by one at a time',
    '    on conflict do nothing returning l.id',
    '    returning l.id',
    functions,
  ],
  [
    'what is not due yet is ready',
    "case when v_run_at[n] > v_now then 'scheduled'",
    "case when false then 'scheduled'",
    functions,
  ],
  [
    'what is due is scheduled',
    "case when v_run_at[n] > v_now then 'scheduled'",
    "case when v_run_at[n] >= v_now then 'scheduled'",
    functions,
  ],
  ...['name', 'queue', 'version'].map((what) => [
    `the lane of another ${what}`,
    new RegExp(`p_${what}s\\[n\\] = p_${what}s\\[n - 1\\]`),
    'n > 1',
    functions,
  ]),
  [
    'add_job: what is not due yet is ready',
    'case when v_run_at > v_now then',
    'case when false then',
    functions,
  ],
  ['add_job: any number of attempts', 'coalesce(max_attempts, 0) < 1 or', 'false or', functions],
  ['add_job: a moment that never comes', 'if not pg_catalog.isfinite(v_run_at) or', 'if', [test('add')]],
  ['add_job: an end that never comes', ' or not pg_catalog.isfinite(expires_at)', '', [test('add')]],
  ['add_job: an input of any size', 'if v_bytes > 1048576 then', 'if false then', [test('add')]],
  [
    'add_job: a correlation of any length',
    'if pg_catalog.length(correlation_id) > 1000 then',
    'if false then',
    [test('add')],
  ],
]

const LOCKED = 'for update skip locked'

// Left out, since nothing depends on it: whether the clock is read before or after a lock that skips what others have, since it waits for nobody.

/** @type {typeof ofTable} */
const ofClaiming = [
  ...Object.entries({ claim, probe, carefully }).flatMap(([name, place]) => [
    [`${name}: what is picked is not locked`, place(` ${LOCKED}`), '', claims],
    [`${name}: waits for others`, place(` ${LOCKED}`), ' for update', functions],
    [`${name}: what is not ready`, place("j.state = 'ready' and "), '', functions],
    [`${name}: of any lane`, place('j.lane = c.lane'), 'true', functions],
    [
      `${name}: what has expired`,
      place('j.expires_at > v_before)'),
      "j.expires_at > '-infinity')",
      functions,
    ],
    [`${name}: what expires now`, place('j.expires_at > v_before'), 'j.expires_at >= v_before', functions],
    [`${name}: of a queue that is paused`, place('    where c.lane <> all (v_paused)\n'), '', functions],
    [
      `${name}: a pause does not wait for it`,
      place('not pg_catalog.pg_try_advisory_xact_lock_shared({schema}.job_claims_key())'),
      'false',
      claims,
    ],
    [
      `${name}: pauses are looked for before its turn`,
      place(
        '  if not pg_catalog.pg_try_advisory_xact_lock_shared({schema}.job_claims_key()) then\n    return null;\n  end if;\n  -- point: before the pauses\n  v_paused := {schema}.job_paused();\n',
      ),
      '  -- point: before the pauses\n  v_paused := {schema}.job_paused();\n  -- point: before its turn\n  if not pg_catalog.pg_try_advisory_xact_lock_shared({schema}.job_claims_key()) then\n    return null;\n  end if;\n',
      claims,
    ],
  ]),
  ['claim: of any priority', claim(' and j.priority = c.priority'), '', functions],
  ['claim: what is behind its place', claim(' and j.id > c.after'), '', functions],
  [
    'claim: in any order',
    claim('order by j.id limit v_limit'),
    'order by j.id desc limit v_limit',
    functions,
  ],
  ['claim: more than there is room for', claim('    limit v_limit\n  ) p;'), '  ) p;', functions],
  ['probe: in any order', probe('order by j.priority desc, j.id'), 'order by j.id', functions],
  ['probe: more than there is room for', probe('    limit v_limit\n  ) p;'), '  ) p;', functions],
  ['carefully: in any order', carefully('order by j.priority desc, j.id'), 'order by j.id', functions],
  [
    'carefully: more than there is room for',
    carefully('pg_catalog.cardinality(v_all) = p_count or '),
    '',
    functions,
  ],
  [
    'carefully: a bad row that cannot be set aside fails all',
    carefully('      exception when others then\n        v_stuck'),
    '      exception when no_data then\n        v_stuck',
    functions,
  ],
  [
    'carefully: a server that is full is the fault of a job',
    carefully("('08', '0A', '25', '28', '40', '42', '53', '55', '57', '58', 'XX')"),
    "('08', '42')",
    functions,
  ],
  [
    'carefully: what may not be done is the fault of a job',
    carefully("'40', '42', '53'"),
    "'40', '53'",
    functions,
  ],
  [
    'carefully: a bad row fails all',
    carefully('    exception when others then\n      get'),
    '    exception when no_data then\n      get',
    functions,
  ],
  [
    'take: a fence need not grow',
    take('v_fence := {schema}.next_fence(v_fence, v_now);'),
    'v_fence := {schema}.micros(v_now);',
    functions,
  ],
  [
    'take: the fence of the first is enough',
    take('pg_catalog.max(j.fence)\n'),
    'pg_catalog.min(j.fence)\n',
    functions,
  ],
  [
    'take: nobody will find out that it is lost',
    take('values (p_worker, v_look_at, v_ids)'),
    "values (p_worker, v_look_at, '{}')",
    functions,
  ],
  [
    'take: it is found out later than it might be',
    take('v_look_at := least(v_look_at'),
    'v_look_at := greatest(v_look_at',
    functions,
  ],
  [
    'take: what the first is, all are',
    of('job_told')("pg_catalog.array_remove(p_numbers, p_numbers[1]) = '{}'"),
    'true',
    functions,
  ],
  [
    'take: what nothing is correlated with',
    take("case when pg_catalog.array_remove(v_correlations, null) <> '{}' then v_correlations end"),
    'null',
    [test('add')],
  ],
  [
    'take: attempts are not counted',
    take('attempt = j.attempt + 1'),
    'attempt = greatest(j.attempt, 1)',
    functions,
  ],
  [
    'workers get more than they asked for',
    of('job_take_all')('v_from + p_counts[n] - 1'),
    'v_from + p_counts[n]',
    functions,
  ],
  [
    'what waits ends, and is kept though it is not to be',
    of('job_end_waiting')('from gone g where g.keep_days > 0'),
    'from gone g',
    functions,
  ],
  ['promote: what is picked is not locked', promote(` ${LOCKED}`), '', functions],
  ['promote: waits for others', promote(` ${LOCKED}`), ' for update', functions],
  [
    'promote: what is in another state',
    promote("j.listed = 'schedule' and j.run_at <= v_before"),
    "j.listed in ('schedule', 'dead') and j.run_at <= v_before",
    functions,
  ],
  ['promote: what is not due', promote(' and j.run_at <= v_before'), '', functions],
  ['promote: not at that moment', promote('j.run_at <= v_before'), 'j.run_at < v_before', functions],
  [
    'promote: in any order',
    promote('order by j.run_at limit p_limit'),
    'order by j.id limit p_limit',
    functions,
  ],
  ['promote: all at once', promote(' limit p_limit'), '', functions],
  [
    'promote: nothing scheduled is something due',
    promote('case when v_next is not null then greatest'),
    'case when true then greatest',
    functions,
  ],
  ['expire: what is picked is not locked', expire(` ${LOCKED}`), '', functions],
  ['expire: waits for others', expire(` ${LOCKED}`), ' for update', functions],
  ['expire: what has not expired', expire('j.expires_at <= v_before and '), '', functions],
  ['expire: not at that moment', expire('j.expires_at <= v_before'), 'j.expires_at < v_before', functions],
  ['expire: what runs, or is dead', expire(" and j.state in ('ready', 'scheduled', 'gated')"), '', functions],
  ['expire: all at once', expire(' limit p_limit'), '', functions],
  [
    'expire: waits for a day of history for ever',
    expire('perform {schema}.bound(1000);'),
    '',
    [test('history-day')],
  ],
]

/** @type {typeof ofTable} */
const ofEnding = [
  // Of `j.fence = any (p_fences)` in job_complete nobody would notice but those whose rows are locked for nothing: each fence is looked at afterwards.
  [
    'complete: under any fence',
    complete('if v_ids <> p_ids or v_fences <> p_fences then'),
    'if false then',
    functions,
  ],
  ['complete: under the fence of another', complete(' or v_fences <> p_fences'), '', functions],
  ['complete: told apart by ids alone', complete(' and c.fence = h.fence'), '', functions],
  ['complete: what does not run', complete(" and j.state = 'running'"), '', functions],
  ['complete: what is picked is not locked', complete(` ${LOCKED}`), '', attempts],
  ['complete: waits for others', complete(` ${LOCKED}`), ' for update', functions],
  ['settle: under any fence', settle(' and j.fence = m.fence and j.state'), ' and j.state', functions],
  ['settle: what does not run', settle(" and j.state = 'running'"), '', functions],
  ['settle: what is picked is not locked', settle(' for update of j skip locked'), '', attempts],
  ['settle: waits for others', settle(' for update of j skip locked'), ' for update of j', functions],
  ['complete: a result of another attempt', succeed(' and r.fence = j.fence'), '', attempts],
  ['complete: what is not kept is kept', succeed(' and j.keep_days > 0;'), ';', functions],
  [
    'complete: the day is there',
    complete('    perform {schema}.job_history_day('),
    '    perform (',
    functions,
  ],
  [
    'complete: all were recorded',
    complete('if pg_catalog.cardinality(v_ids) = pg_catalog.cardinality(p_ids) then'),
    'if true then',
    functions,
  ],
  ['wait: under any fence', wait(' and j.fence = p_fence'), '', functions],
  ['wait: what does not run', wait(" and j.state = 'running'"), '', functions],
  ['wait: nothing is locked', wait("'running' for update;"), "'running';", attempts],
  [
    'wait: for as long as it takes',
    wait('  perform {schema}.bound({schema}.bounded_wait(p_wait_ms));\n'),
    '',
    functions,
  ],
  ['complete one: any end is a success', completeOne(" and h.outcome = 'succeeded'"), '', functions],
  ['complete one: a success of another attempt', completeOne(' and h.fence = p_fence'), '', functions],
  [
    'complete one: a lost answer is a lost job',
    completeOne("if v_state = 'lost' then"),
    'if false then',
    functions,
  ],
  [
    'settle: what another attempt has said is its history',
    settle('on j.id = m.id and j.fence = m.fence\n  cross'),
    'on j.id = m.id\n  cross',
    functions,
  ],
  [
    'settle: what another attempt has said ends it',
    settle('where j.id = m.id and j.fence = m.fence and j.id = any (v_held) and ('),
    'where j.id = m.id and j.id = any (v_held) and (',
    functions,
  ],
  [
    'settle: what another attempt has said counts',
    settle('m where j.id = m.id and j.fence = m.fence and'),
    'm where j.id = m.id and',
    functions,
  ],
  [
    'settle: what was canceled has failed',
    settle("(select j.cancel_at is not null or m.to = 'canceled' as is_canceled)"),
    "(select m.to = 'canceled' as is_canceled)",
    functions,
  ],
  [
    'settle: what was canceled goes on',
    settle("(j.cancel_at is not null or m.to = 'canceled');"),
    "(m.to = 'canceled');",
    functions,
  ],
  ['settle: what was given back has failed', settle("m.to in ('retry', 'dead'))"), 'true)', functions],
  [
    'settle: what was given back counts',
    settle("m.to in ('snooze', 'back')"),
    "m.to in ('snooze')",
    functions,
  ],
  ['settle: a snooze counts', settle("m.to in ('snooze', 'back')"), "m.to in ('back')", functions],
  [
    'settle: what is due later is ready',
    settle("when m.delay_ms > 0 then 'scheduled'"),
    "when false then 'scheduled'",
    functions,
  ],
  ['settle: what is not kept is kept', settle(' and j.keep_days > 0 and ('), ' and (', functions],
  [
    'settle one: a lost answer is a lost job',
    settleOne("if v_state = 'lost' then"),
    'if false then',
    functions,
  ],
  [
    'settle one: what became of the job later is its end',
    settleOne('\n      and h.started_at is not null'),
    '',
    functions,
  ],
  [
    'settle one: a success is a failure',
    settleOne("when v_outcome = 'succeeded' then v_outcome when"),
    "when v_outcome = 'succeeded' then 'done' when",
    [test('job-commit')],
  ],
  ['beat: under any fence', beat(' and j.fence = c.fence and j.state'), ' and j.state', functions],
  // Of `state = 'running'` in job_beat and job_take_from_lost nobody would notice: what does not run has no lease. Nor of
  // `o.cancel_at is null` in the latter: what one part of a statement has deleted, another does not write.
  ['beat: what is picked is not locked', beat(' for no key update of j skip locked'), '', functions],
  [
    'beat: waits for others',
    beat(' for no key update of j skip locked'),
    ' for no key update of j',
    functions,
  ],
  [
    'beat: revives a lease that has run out',
    beat(' and j.lease_until > v_now\n    returning'),
    '\n    returning',
    functions,
  ],
  [
    'beat: a lease that has run out is locked',
    beat(' and j.lease_until > v_now\n    where'),
    '\n    where',
    functions,
  ],
  [
    'beat: takes time away',
    beat("greatest(j.lease_until, v_now + c.lease_ms * interval '1 millisecond')"),
    "v_now + c.lease_ms * interval '1 millisecond'",
    functions,
  ],
  [
    'beat: does not tell of a cancellation',
    beat('filter (where r.cancel_at is not null)'),
    'filter (where false)',
    functions,
  ],
  ['beat: workers are not seen', beat('set seen_at = v_now'), 'set seen_at = w.seen_at', functions],
  ['tell: revives a lease that has run out', tell(' and j.lease_until > v_now'), '', functions],
  [
    'tell: the clock is read before the lock',
    tell(
      '  v_state text := {schema}.job_wait(p_id, p_fence, p_wait_ms);\n  v_now timestamptz := {schema}.clock();\n',
    ),
    '  v_now timestamptz := {schema}.clock();\n  v_state text := {schema}.job_wait(p_id, p_fence, p_wait_ms);\n',
    functions,
  ],
  ['tell: takes time away', tell('greatest(j.lease_until, '), 'greatest(v_now, ', functions],
  ['beat: what runs for long stays in the line', beat(", listed = 'none'"), '', functions],
]

/** @type {typeof ofTable} */
const ofRecovering = [
  ...['d', 'o'].flatMap((which) => [
    [
      `recover: claims that another looks at (${which})`,
      recover(` ${LOCKED}) ${which}`),
      `) ${which}`,
      functions,
    ],
    [
      `recover: waits for who looks at a claim (${which})`,
      recover(` ${LOCKED}) ${which}`),
      ` for update) ${which}`,
      functions,
    ],
  ]),
  ['recover: claims that nobody has asked for', recover('i.id = any (p_over) and '), '', functions],
  [
    'recover: waits for a day of history for ever',
    recover('perform {schema}.bound(1000);'),
    '',
    [test('history-day')],
  ],
  [
    'recover: waits once for each job',
    recover('when lock_not_available then\n    raise;\n  when others'),
    'when others',
    [test('history-day')],
  ],
  ['recover: all claims', recover('where i.look_at <= v_before'), 'where true', functions],
  ['recover: not at that moment', recover('i.look_at <= v_before'), 'i.look_at < v_before', functions],
  [
    'recover: a claim is looked at again too late',
    recover('pg_catalog.min(j.lease_until)'),
    'pg_catalog.max(j.lease_until)',
    functions,
  ],
  [
    'recover: what was passed over is looked for all the time',
    recover('case when r.first > v_before or v_is_full then r.first else'),
    'case when true then r.first else',
    functions,
  ],
  ['recover: one too many waits', recover(' or v_is_full then r.first'), ' then r.first', functions],
  [
    'recover: a claim is gone though its jobs run',
    recover(
      "    and not exists (select from {schema}.job j where j.id = any (h.ids) and j.worker = h.worker and j.state = 'running');",
    ),
    ';',
    functions,
  ],
  [
    'recover: a claim stays though its jobs are over',
    recover(' and j.worker = h.worker and j.state = '),
    ' or j.id > 0 and j.worker = h.worker and j.state <> ',
    functions,
  ],
  ['recover: what is held', lost(' and j.lease_until <= p_before'), '', functions],
  [
    'recover: a lease, not at that moment',
    lost('j.lease_until <= p_before'),
    'j.lease_until < p_before',
    functions,
  ],
  ['recover: what is picked is not locked', lost(` ${LOCKED}`), '', attempts],
  ['recover: waits for others', lost(` ${LOCKED}`), ' for update', functions],
  ['recover: all at once', lost(' limit p_limit'), '', functions],
  [
    'recover: one that cannot be taken keeps all others',
    recover('when others then\n    -- point: before they are taken one by one'),
    'when division_by_zero then\n    -- point: before they are taken one by one',
    functions,
  ],
  [
    'recover: nobody hears of what cannot be taken',
    of('job_take_from_lost_carefully')('if v_code is not null and pg_catalog.cardinality(v_all) = 0 then'),
    'if false then',
    functions,
  ],
  ['recover: goes round for ever', lost('when j.attempt >= j.max_attempts'), 'when false', functions],
  [
    'recover: one attempt too many',
    lost('j.attempt >= j.max_attempts'),
    'j.attempt > j.max_attempts',
    functions,
  ],
  [
    'recover: what was canceled is lost',
    lost("case when j.cancel_at is not null then 'canceled'"),
    "case when false then 'canceled'",
    functions,
  ],
  [
    'recover: what was canceled goes on',
    lost(' and j.cancel_at is not null returning'),
    ' and false returning',
    functions,
  ],
  [
    'recover: what is not kept is kept',
    lost('where j.id = any (v_ids) and j.keep_days > 0;'),
    'where j.id = any (v_ids);',
    functions,
  ],
  ['strays: of any worker', strays(' and j.worker = any (p_workers)'), '', functions],
  ['strays: what is known', strays(' and j.id <> all (p_known)'), '', functions],
]

/** @type {typeof ofTable} */
const ofOperating = [
  ['cancel: nothing is locked', cancel('j.id = p_id for update;'), 'j.id = p_id;', claims],
  [
    'cancel: waits for as long as it takes',
    cancel('    perform {schema}.bound({schema}.bounded_wait(p_wait_ms));\n'),
    '',
    functions,
  ],
  ['cancel: the first time is forgotten', cancel('coalesce(j.cancel_at, v_now)'), 'v_now', functions],
  ['cancel: what runs ends at once', cancel("if v_job.state = 'running' then"), 'if false then', functions],
  ['cancel: what is dead is canceled', cancel("if v_job.state = 'dead' then"), 'if false then', functions],
  ['redrive: what is not dead', redrive(" and j.state = 'dead'"), '', functions],
  ['redrive: what is picked is not locked', redrive(` ${LOCKED}`), '', attempts],
  ['redrive: waits for others', redrive(` ${LOCKED}`), ' for update', functions],
  ['redrive: with no attempt left', redrive(', attempt = 0'), '', functions],
  ['redrive: what has expired expires again', redrive(', expires_at = null'), '', functions],
  ['discard: what is not dead', discard(" and i.state = 'dead'"), '', functions],
  ['discard: what is picked is not locked', discard(` ${LOCKED}`), '', functions],
  ['discard: waits for others', discard(` ${LOCKED}`), ' for update', functions],
  [
    'pause: claims under way are not waited for',
    pause('  perform pg_catalog.pg_advisory_xact_lock({schema}.job_claims_key());\n'),
    '',
    claims,
  ],
  [
    'pause: the first time is forgotten',
    pause('coalesce(q.paused_at, excluded.paused_at)'),
    'excluded.paused_at',
    functions,
  ],
  [
    'pause: who was first is forgotten',
    pause('coalesce(q.paused_by, excluded.paused_by)'),
    'excluded.paused_by',
    functions,
  ],
  ['workers that are there are forgotten', of('worker_forget')('i.seen_at < v_before'), 'true', functions],
  ['workers that are busy are waited for', of('worker_forget')(` ${LOCKED}`), ' for update', functions],
]

/** @type {[name: string, file: string, from: string | RegExp, to: string, tests: string[]][]} */
const around = [
  [
    'two ends of one job go together, and share an answer',
    'src/jobs/ender.ts',
    'if (hasRoom && !batch.has(id)) batch.set(id, ending)',
    'if (hasRoom) batch.set(id * 2 + (batch.has(id * 2) ? 1 : 0), ending)',
    [test('ender')],
  ],
  [
    'what was canceled counts as what it was to become',
    'src/jobs/ender.ts',
    "told?.canceled?.has(id) ? 'canceled' : 'done'",
    "'done'",
    [test('outcomes')],
  ],
  ...[
    ['what is new waits for a look that takes long', ' && !this.#goesBeside(demand)', ''],
    [
      'heartbeats wait for a look that takes long',
      'this.#isSlow ? this.#engine.looks : this.#engine.upkeep',
      'this.#engine.upkeep',
    ],
    [
      'what became ready behind a look waits for the poll',
      "else if (this.#isOutdated) this.#goOn('start')",
      '',
    ],
    ['a look that fails beside the claims is repeated beside them', '    this.#tookMs = [0, 0]\n', ''],
    ['with room for one, looks never end', ' && first.count > 1', ''],
  ].map(([name, from, to]) => [name, 'src/jobs/fetcher.ts', from, to, [test('slow-look')]]),
  ...[
    [
      'looks rest for a second also where there is nothing else to do',
      'this.#isEnough && !isBehind',
      '!isBehind',
    ],
    ['a look that has found much is not followed by the next', 'isFollowed ? 0 : ', ''],
  ].map(([name, from, to]) => [name, 'src/jobs/fetcher.ts', from, to, [test('looks.timing')]]),
  [
    'partitions are made in front of heartbeats',
    'src/jobs/job-upkeep.ts',
    'this.#engine.looks.send(keepHistory',
    'this.#engine.upkeep.send(keepHistory',
    [test('outages')],
  ],
  [
    'what cannot be looked at ends the process',
    'src/jobs/run-attempt.ts',
    'error: readable(error)',
    'error',
    [test('outcomes')],
  ],
  [
    'half of a character is a reason',
    'src/jobs/cancel-job.ts',
    ".replace(/\\p{Surrogate}/gu, '\\ufffd')",
    '',
    [test('outcomes')],
  ],
  [
    'a hint from inside may be too long',
    'src/jobs/hint-after-commit.ts',
    'toPayload(topicsOf(jobs))',
    'JSON.stringify([...topicsOf(jobs)])',
    [test('add')],
  ],
  [
    'the dead of a lane are found among all',
    'src/jobs/record-statements.ts',
    "listedIn('dead', 'l'), 'j.lane, j.id'",
    "listedIn('dead', 'l'), 'j.id'",
    [test('queues')],
  ],
  [
    'a count of scheduled jobs reads those of all lanes',
    'sql/0027_job_schedule_lane.sql',
    "where listed = 'schedule'",
    "where listed = 'none'",
    [test('queues')],
  ],
  [
    'a reference stands for a job of another name',
    'src/jobs/job-ref.ts',
    'if (name === undefined || name === actual) return',
    'return',
    [test('job-ref')],
  ],
  [
    'a rest is longer than a timer can be',
    'src/jobs/fetcher.ts',
    'Math.min(ms, MAX_TIMER_MS)',
    'ms',
    [test('worker')],
  ],
  [
    'a thread for heartbeats is tried for ever',
    'src/jobs/work.ts',
    'if (read.heartbeatThread) checkHeartbeatThread(engine.database)',
    '',
    [test('worker')],
  ],
  [
    'what has run out is looked for before what has ended is recorded',
    'src/jobs/job-upkeep.ts',
    'if (this.#isAway || this.#engine.ender.isBehind) return AWAY_MS',
    '',
    [test('outages')],
  ],
  [
    'what has run out is looked for before others have recorded what has ended',
    'src/jobs/job-upkeep.ts',
    'return this.#recoverAt - performance.now()',
    'return 0',
    [test('outages')],
  ],
  [
    'a hint is not sent with what was added',
    'src/jobs/add-jobs.ts',
    'database.sendThen(statement, values, wakeups.notifying(topics), () => hintJobs(wakeups, jobs)),',
    'database.send(statement, values),',
    [test('add')],
  ],
  [
    'who is here is not told of what was added',
    'src/jobs/add-jobs.ts',
    '  wakeups.wakeHere(topics)\n',
    '',
    [test('add')],
  ],
  [
    'a hint that cannot go along is not sent',
    'src/postgres/database.ts',
    '      orElse()\n      return rows',
    '      return rows',
    ['src/postgres/send-then.test.ts'],
  ],
  [
    'a hint that went along and failed is not sent again',
    'src/postgres/database.ts',
    '      checkout.release(error)\n      orElse()\n',
    '      checkout.release(error)\n',
    ['src/postgres/send-then.test.ts'],
  ],
  [
    'a connection goes back before the second answer',
    'src/postgres/database.ts',
    '      await second\n      checkout.release()',
    '      checkout.release()',
    ['src/postgres/send-then.test.ts'],
  ],
  ...[
    [
      'a connection that ends at the second goes back',
      'checkout.release(error)\n      orElse()',
      'checkout.release()\n      orElse()',
    ],
    ['any number of seconds', 'this.#seconds < MOST_SECONDS && ', ''],
    [
      'any number of seconds for those who ask at once',
      'if (this.#mayFollow) sent = queryThen',
      'sent = queryThen',
    ],
    ['seconds that do not end are sent again and again', ' && performance.now() >= this.#secondsFrom', ''],
    [
      'a refusal waits for the second',
      'checkout.bound(SECOND_MS)\n        const isForgotten',
      'await sent.second.catch(() => {})\n        const isForgotten',
    ],
  ].map(([name, from, to]) => [
    name,
    'src/postgres/database.ts',
    from,
    to,
    ['src/postgres/send-then.test.ts'],
  ]),
  [
    'what was sent behind another is sent again',
    'src/postgres/together.ts',
    '    if (!this.#isWritten) {',
    '    if (true) {',
    ['src/postgres/together.test.ts'],
  ],
  [
    'data that is not plain is taken for it',
    'src/postgres/json.ts',
    'if (Object.getPrototypeOf(value) !== Object.prototype) return false',
    'if (value instanceof Date) return false',
    ['src/claims/once-input.test.ts'],
  ],
  [
    'an attempt counts though its handler has not started',
    'src/jobs/run-attempt.ts',
    'if (hasStarted) throw error',
    'if (hasStarted || !(error instanceof BusyError)) throw error',
    [test('not-started')],
  ],
  [
    'a heartbeat that failed is sent again though no worker is left',
    'src/jobs/lease-keeper.ts',
    'due.length === 0 && this.#workers.size > 0',
    'due.length === 0',
    [test('stop')],
  ],
  [
    'a handler starts though its job was given back',
    'src/jobs/run-attempt.ts',
    'attempt.signal.throwIfAborted() // the job may have been given back during the wait',
    '',
    [test('not-started')],
  ],
  [
    'a filter that names nothing takes everything',
    'src/jobs/dead-jobs.ts',
    'if (!all && ',
    'if (false && ',
    [test('outcomes')],
  ],
  [
    'a full pool is the end of a wait',
    'src/jobs/job-results.ts',
    'if (!(error instanceof BusyError) || leftMs <= 0) throw error',
    'if (leftMs < 1e9) throw error',
    [test('outcomes')],
  ],
]

const inFile = (file, guards) =>
  guards.map(([name, from, to, tests]) => ({ name: `jobs: ${name}`, file, from, to, tests }))

export const jobMutations = [
  ...inFile(inTable, ofTable),
  ...inFile(inAdd, ofAdding),
  ...inFile(inClaim, ofClaiming),
  ...inFile(inEnd, ofEnding),
  ...inFile(inRecover, ofRecovering),
  ...inFile(inOperate, ofOperating),
  ...around.map(([name, file, from, to, tests]) => ({ name: `jobs: ${name}`, file, from, to, tests })),
]
