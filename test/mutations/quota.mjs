// Guards of `dibs.quota` and of the periods that its windows are: first those in SQL, then those around it.
import { readFileSync } from 'node:fs'
import { about, claims, inFunction } from './mutation.mjs'

const periods = [claims('period.test.ts')]
const tries = [claims('try-forms.test.ts')]
const takes = [claims('quota.test.ts')]
const holds = [claims('quota-holds.test.ts')]
const windows = [claims('quota-windows.test.ts')]
const joined = [claims('quota.joined.test.ts')]
const input = [claims('quota-input.test.ts')]
const explored = [claims('quota.explore.test.ts')]

const current = (text) => inFunction('quota_current', text)
const seen = (text) => inFunction('quota_seen', text)
const plain = (text) => inFunction('quota_take_plain', text)
const done = [claims('acquire-holds.test.ts')]
const exploredDone = [claims('acquire-holds.explore.test.ts')]
const edges = [claims('acquire-edges.test.ts')]
const freeAt = (text) => inFunction('quota_free_at', text)
const take = (text) => inFunction('quota_take', text)
const resolve = (text) => inFunction('quota_resolve', text)
const forget = (text) => inFunction('quota_forget', text)
const firstMoment = (text) => inFunction('first_moment', text)
const hour = (text) => inFunction('hour_of', text)
const period = (text) => inFunction('period', text)

/** A function in which more than one line is changed. */
function rewritten(name, what, change, tests) {
  const file = about('quota', `create function {schema}.${name}(`)
  const source = readFileSync(new URL(`../../${file}`, import.meta.url), 'utf8')
  const [text] = source.match(
    new RegExp(`create function \\{schema\\}\\.${name}\\([\\s\\S]*?\\n\\$\\$;`),
  ) ?? ['']
  return [what, text, change(text), tests]
}

const look = '  v_now := {schema}.clock();\n'
const turns = '  for v_turn in 1..20 loop\n'
const looksTooEarly = (text) => text.replace(look, '').replace(turns, () => `${look}${turns}`)

/** @type {[name: string, from: string | RegExp, to: string, tests: string[]][]} */
const inPeriods = [
  ['of two midnights the second counts', firstMoment('least(v_earlier, v_later)'), 'v_later', periods],
  [
    'an earlier moment is taken that shows another time',
    firstMoment(
      'case when (v_earlier at time zone p_zone) = p_local then least(v_earlier, v_later) else v_later end',
    ),
    'least(v_earlier, v_later)',
    periods,
  ],
  [
    'a skipped midnight is as long after the skip',
    firstMoment("if v_skipped > interval '0' then"),
    'if false then',
    periods,
  ],
  [
    'an hour does not begin where the clocks were moved',
    hour("if (starts_at at time zone p_zone) - (starts_at at time zone 'UTC') <> v_offset then"),
    'if false then',
    periods,
  ],
  [
    'an hour does not end where the clocks are moved',
    hour("if (v_last at time zone p_zone) - (v_last at time zone 'UTC') <> v_offset then"),
    'if false then',
    periods,
  ],
  [
    'hours are those of UTC',
    hour("date_trunc('hour', p_at, p_zone)"),
    "date_trunc('hour', p_at, 'UTC')",
    periods,
  ],
  ['a day that comes again begins again', period('if ends_at <= p_at then'), 'if false then', periods],
  [
    'a day has 24 hours',
    period('ends_at := {schema}.first_moment(v_local + v_step, v_zone);'),
    'ends_at := {schema}.first_moment(v_local, v_zone) + v_step;',
    periods,
  ],
  ['periods are those of UTC', period('p_at at time zone v_zone)'), "p_at at time zone 'UTC')", periods],
  [
    'intervals before the first go the wrong way',
    period('((v_at % v_every) + v_every) % v_every'),
    'v_at % v_every',
    periods,
  ],
  ['intervals begin in 1970', period("v_from := (p_rule ->> 'fromUs')::bigint;"), 'v_from := 0;', periods],
  ['a slot ends before it begins anew', period('<= v_at))'), '< v_at))', periods],
  ['the next slot is the one of now', period('> v_at))'), '>= v_at))', periods],
  [
    'the list of slots reaches everywhere',
    period('if starts_at is null or ends_at is null then'),
    'if false then',
    periods,
  ],
  ['weeks are named by the year of their days', period(`'IYYY-"W"IW'`), `'YYYY-"W"IW'`, periods],
]

/** @type {[name: string, from: string | RegExp, to: string, tests: string[]][]} */
const inQuotas = [
  [
    'a window has the name of the one before',
    current('      v_row.window_id := {schema}.next_fence(v_row.window_id, p_now);\n'),
    '',
    [...takes, ...windows],
  ],
  [
    'a window has the name of one that was forgotten',
    inFunction('quota_insert', '{schema}.next_fence(0, v_now)'),
    '0',
    windows,
  ],
  [
    'take: what a lease has is reserved by others',
    take(
      "            or p_hold_ms is not null and p_holder is null and v_entry.holder is not null then 'mismatch'\n",
    ),
    "            then 'mismatch'\n",
    done,
  ],
  [
    'take: what a lease has is forgotten as the rest',
    take('case when p_holder is not null and p_keep_ms is not null'),
    'case when false',
    done,
  ],
  rewritten(
    'quota_take_plain',
    'plain: refused by the time before the wait',
    (text) =>
      text
        .replace('  v_now timestamptz;\n', '  v_now timestamptz := {schema}.clock();\n')
        .replace('    v_now := {schema}.clock();\n', ''),
    windows,
  ),
  [
    'what is done runs out',
    current("case when e.is_done then 'taken' else 'expired' end"),
    "'expired'",
    done,
  ],
  ['what is done is not used', current('    v_row.used := v_row.used + v_done;\n'), '', done],
  [
    'resolve: what is done is held',
    resolve("  if v_entry.state = 'held' and v_entry.is_done then"),
    '  if false then',
    done,
  ],
  ['subjects are not unique', '  primary key (name, subject),\n', '', takes],
  ['ids are not unique', /,\n {2}primary key \(name, id\)\n/, '\n', takes],
  ['the table keeps no limit', 'check (used + held <= most and ', 'check (', takes],
  ['the table counts below nothing', ' and least(used, held, over, unlisted) >= 0)', ')', takes],

  ['current: a window never ends', current('if v_row.ends_at <= p_now then'), 'if false then', windows],
  [
    'current: a window begins with its period, not where the last one ended',
    current('greatest(v_period.starts_at, v_row.ends_at)'),
    'v_period.starts_at',
    windows,
  ],
  ['current: what was used goes on into the next window', current('      v_row.used := 0;\n'), '', windows],
  ['current: what was reserved goes on into the next window', current('      v_row.held := 0;\n'), '', holds],
  [
    'current: what was overdrawn goes on into the next window',
    current('      v_row.over := 0;\n'),
    '',
    holds,
  ],
  [
    'current: what is not listed goes on into the next window',
    current('      v_row.unlisted := 0;\n'),
    '',
    windows,
  ],
  [
    'current: a stock that becomes a window never ends',
    current('    v_row.ends_at := v_period.ends_at;\n'),
    '',
    windows,
  ],
  [
    'current: what has run out is not free',
    current('if v_row.holds_until <= p_now then'),
    'if false then',
    holds,
  ],
  [
    'current: all reservations have run out',
    current(" and e.state = 'held' and e.expires_at <= p_now"),
    " and e.state = 'held'",
    holds,
  ],
  [
    'current: what was ended runs out as well',
    current(" and e.state = 'held' and e.expires_at <= p_now"),
    ' and e.expires_at <= p_now',
    holds,
  ],
  [
    'current: reservations of others run out',
    current(' and e.subject = v_row.subject'),
    '',
    [...holds, ...takes],
  ],
  [
    'current: reservations of other windows run out here',
    current('\n        and e.window_id = v_row.window_id'),
    '',
    holds,
  ],
  [
    'current: what has run out stays counted',
    current('    v_row.held := v_row.held - v_expired;\n'),
    '',
    holds,
  ],
  [
    'current: nobody looks for the next to run out',
    current('pg_catalog.min(e.expires_at) into'),
    'null into',
    holds,
  ],

  ['free: holds are not counted', freeAt('if v_freed >= p_need then'), 'if false then', holds],
  ['free: the first to run out is enough', freeAt('if v_freed >= p_need then'), 'if true then', holds],
  [
    'free: what was ended frees',
    freeAt(" and e.state = 'held' and not e.is_done\n"),
    ' and not e.is_done\n',
    [...holds, claims('quota.property.test.ts')],
  ],
  ['free: what is done frees', freeAt(' and not e.is_done'), '', done],
  ['free: the next window frees nothing', freeAt("nullif((p_row).ends_at, 'infinity')"), 'null', takes],

  ['take: nothing is locked', take('p_subject for no key update;'), 'p_subject;', explored],
  [
    'take: who finds no row does not look again',
    take('for v_turn in 1..20 loop'),
    'for v_turn in 1..1 loop',
    explored,
  ],
  [
    'take: what was given back without the row is reserved on',
    take('if v_free_at <= v_now and v_look = 1 then'),
    'if false then',
    exploredDone,
  ],
  [
    'take: what is renewed in between is taken for given back',
    take('        v_free_at := null;\n      else'),
    '        v_free_at := null;\n        exit;\n      else',
    exploredDone,
  ],
  rewritten('quota_take', 'take: the clock is read before the lock', looksTooEarly, windows),
  [
    'take: an id is taken again',
    take('if v_id is not null then\n      -- point: before the entry'),
    'if false then\n      -- point: before the entry',
    takes,
  ],
  ["take: an id is anybody's", take('v_entry.subject <> p_subject or '), '', takes],
  ['take: an id is for any amount', take('or v_entry.asked <> v_amount\n'), '\n', takes],
  [
    'take: a reservation is a take',
    take('            or (v_entry.expires_at is null) <> (p_hold_ms is null)\n'),
    '',
    takes,
  ],
  ['take: there is no limit', take('v_amount <= p_limit;'), 'v_amount <= p_limit or true;', takes],
  [
    'take: what is reserved is free',
    take('v_row.used + v_row.over + v_row.held + v_amount <= p_limit'),
    'v_row.used + v_row.over + v_amount <= p_limit',
    holds,
  ],
  [
    'take: what was overdrawn is free',
    take('v_row.used + v_row.over + v_row.held + v_amount <= p_limit'),
    'v_row.used + v_row.held + v_amount <= p_limit',
    holds,
  ],
  ['take: the last unit is never had', take('+ v_amount <= p_limit'), '+ v_amount < p_limit', takes],
  [
    'take: an id that another takes just now is an error',
    take('      on conflict do nothing\n      returning e.* into v_entry;'),
    '      returning e.* into v_entry;',
    explored,
  ],
  [
    'take: an id that another takes just now is taken too',
    take('      if not found then\n        -- Another subject'),
    '      if false then\n        -- Another subject',
    takes,
  ],
  ['take: a rise of the limit is not noted', take('      v_row.most := p_limit;\n'), '', takes],
  ['take: what has no id is listed', take('case when v_id is null then v_amount else 0 end'), '0', takes],
  [
    'take: a reservation is used',
    take('v_row.held := v_row.held + v_amount;'),
    'v_row.used := v_row.used + v_amount;',
    holds,
  ],
  [
    'take: the last reservation runs out first',
    take('least(v_row.holds_until, v_entry.expires_at)'),
    'greatest(v_row.holds_until, v_entry.expires_at)',
    holds,
  ],
  [
    'take: a reservation that has run out is made again',
    take("when v_state = 'known' and v_entry.state = 'held' and v_entry.expires_at <= v_now then 'expired'"),
    "when false then 'expired'",
    holds,
  ],
  [
    'take: ids of a window are forgotten as those of a stock',
    take("case when v_row.ends_at < 'infinity' then v_row.ends_at else v_now end"),
    'v_now',
    windows,
  ],
  [
    'insert: a subject that is there is an error',
    inFunction('quota_insert', '  on conflict do nothing\n'),
    '',
    explored,
  ],
  [
    'joined: a wait takes as long as it likes',
    inFunction('quota_take_joined', 'p_hold_ms, p_keep_ms, v_part_ms)'),
    'p_hold_ms, p_keep_ms, null)',
    joined,
  ],
  [
    'joined: running out of time ends the transaction',
    inFunction('quota_take_joined', '      when lock_not_available then'),
    '      when division_by_zero then',
    joined,
  ],
  [
    'joined: whoever is refused keeps its lock',
    inFunction('quota_take_joined', "<> 'taken' then\n"),
    "= 'nothing' then\n",
    edges,
  ],
  [
    'joined: whoever ends nothing keeps its lock',
    inFunction('quota_resolve_joined', "not in ('settled', 'void', 'refunded') then"),
    "= 'nothing' then",
    edges,
  ],
  [
    'at once: an id that is about to be used is waited for',
    inFunction('quota_take_at_once', '  perform {schema}.bound(p_wait_ms);\n'),
    '',
    edges,
  ],
  [
    'plain: more is taken than fits',
    plain(' and q.used + q.over + q.held + v_total <= p_limit\n'),
    '\n',
    takes,
  ],
  ['plain: what is taken has an entry', plain(', unlisted = q.unlisted + v_total, most'), ', most', takes],
  [
    'plain: of a window that is over, or of what has run out',
    plain('if v_until <= {schema}.clock() then'),
    'if false then',
    edges,
  ],
  [
    'plain: what fits is refused',
    plain(' and q.used + q.over + q.held + v_total > p_limit\n'),
    '\n',
    explored,
  ],
  [
    'many: a subject that is held is waited for',
    inFunction('quota_take_many', 'p_keep_ms, 0)'),
    'p_keep_ms, 5000)',
    [claims('quota.many.test.ts')],
  ],
  [
    'joined: the caller waits as we did',
    inFunction('quota_take_joined', '  set lock_timeout = 0\n'),
    '',
    joined,
  ],
  [
    'joined: a part of the wait is all of it',
    inFunction('quota_take_joined', '      exit when v_left_ms <= 0;'),
    '      exit;',
    joined,
  ],
  ...['quota_take_joined', 'quota_resolve_joined'].map((name) => [
    `joined: waits that end late outlast their statement, in ${name}`,
    inFunction(name, '{schema}.left_of_wait(v_left_ms - v_part_ms, v_wait_end)'),
    'v_left_ms - v_part_ms',
    joined,
  ]),
  [
    'joined: a wait outlasts its statement',
    inFunction('bounded_wait', 'case when t.ms > 0 then'),
    'case when false then',
    joined,
  ],
  [
    'resolve: joined: a wait takes as long as it likes',
    inFunction('quota_resolve_joined', 'p_per, v_part_ms)'),
    'p_per, null)',
    joined,
  ],
  [
    'resolve: joined: the caller waits as we did',
    inFunction('quota_resolve_joined', '  set lock_timeout = 0\n'),
    '',
    joined,
  ],

  [
    'resolve: the row is not locked',
    resolve('q.subject = v_seen.subject for no key update;'),
    'q.subject = v_seen.subject;',
    explored,
  ],
  [
    'resolve: the entry is not read again',
    resolve(
      '    select e.* into v_entry from {schema}.quota_entry e where e.name = p_name and e.id = p_id for no key update;\n',
    ),
    '    v_entry := v_seen;\n    perform 1;\n',
    explored,
  ],
  [
    'resolve: an id that was used anew is the same',
    resolve('v_entry.subject = v_seen.subject and (v_row.name'),
    'true or (v_row.name',
    explored,
  ],
  [
    'resolve: a row that was made meanwhile is none',
    resolve('(v_row.name is not null or v_entry.window_id = v_seen.window_id)'),
    'true',
    explored,
  ],
  rewritten('quota_resolve', 'resolve: the clock is read before the lock', looksTooEarly, windows),
  [
    'resolve: what was given back without the row stays reserved',
    resolve('    v_row.holds_until := v_now;\n'),
    '',
    exploredDone,
  ],
  [
    'resolve: nothing is ever late',
    resolve("v_entry.state = 'held' and v_entry.expires_at <= v_now;"),
    'false;',
    holds,
  ],
  [
    'resolve: what was found to have run out is not late',
    resolve("v_entry.state = 'expired' or v_entry.state = 'held'"),
    "v_entry.state = 'held'",
    holds,
  ],
  [
    'settle: the same again is refused',
    resolve(
      "if v_entry.state = 'taken' and v_entry.expires_at is not null and v_entry.amount = p_amount then",
    ),
    'if false then',
    holds,
  ],
  [
    'settle: a take is a reservation',
    resolve("v_entry.state = 'taken' and v_entry.expires_at is not null and"),
    "v_entry.state = 'taken' and",
    holds,
  ],
  ['settle: any amount is the same again', resolve(' and v_entry.amount = p_amount then'), ' then', holds],
  ['settle: what is over is settled', resolve("v_entry.state <> 'held' and not v_is_late or "), '', holds],
  ['settle: late is never refused', resolve("or v_is_late and p_late = 'fail' then"), 'then', holds],
  [
    'settle: more than was reserved',
    resolve('elsif p_amount > v_entry.asked then'),
    'elsif false then',
    holds,
  ],
  ['settle: late is as in time', resolve("if p_what = 'settle' and v_is_late then"), 'if false then', holds],
  [
    'settle: late always fits',
    resolve('v_fits := p_amount = 0 or v_row.used + v_row.over + v_row.held + p_amount <= p_limit;'),
    'v_fits := true;',
    holds,
  ],
  [
    'settle: late fits beside what is reserved',
    resolve('v_row.over + v_row.held + p_amount <= p_limit'),
    'v_row.over + p_amount <= p_limit',
    holds,
  ],
  ['settle: late with nothing may not fit', resolve('p_amount = 0 or '), '', holds],
  [
    'settle: late with nothing notes a limit',
    resolve(' and p_amount > 0 then p_limit'),
    ' then p_limit',
    holds,
  ],
  [
    'settle: late overdraws what fits',
    resolve('case when v_fits then 0 else p_amount end;'),
    'p_amount;',
    holds,
  ],
  [
    'resolve: anybody ends what a call works under',
    resolve('v_entry.holder is not null and v_entry.holder is distinct from p_holder then'),
    'false then',
    done,
  ],
  [
    'settle: late is charged to the window that is over',
    resolve('      v_entry.window_id := v_row.window_id;\n'),
    '',
    holds,
  ],
  [
    'settle: late is forgotten as if it had been in time',
    resolve('v_entry.forget_at + (v_row.starts_at - v_entry.starts_at)'),
    'v_entry.forget_at',
    windows,
  ],
  [
    'settle: late does not make a row that is gone',
    resolve('    if v_row.name is null then\n'),
    '    if false then\n',
    holds,
  ],
  [
    'settle: late does not begin the window',
    resolve('    v_row := {schema}.quota_current(v_row, p_per, v_now);\n'),
    '',
    holds,
  ],
  [
    'settle: what never fits fits some day',
    resolve('case when p_amount <= p_limit\n'),
    'case when true\n',
    holds,
  ],
  [
    'settle: what was reserved stays so',
    resolve('        v_row.held := v_row.held - v_entry.asked;\n'),
    '',
    holds,
  ],
  [
    'settle: a window that is over pays from the next',
    resolve('coalesce(v_row.window_id = v_entry.window_id, false)'),
    'true',
    [...takes, ...holds],
  ],
  [
    'void: what is over is over',
    resolve("elsif p_what = 'void' then\n    if v_entry.state = 'void' then"),
    "elsif p_what = 'void' then\n    if false then",
    holds,
  ],
  [
    'void: what was settled is given back',
    resolve("    elsif v_entry.state not in ('held', 'expired') then\n"),
    '    elsif false then\n',
    holds,
  ],
  [
    'void: what has run out and is counted no more is taken off again',
    resolve('if v_is_charged and v_is_counted then'),
    'if v_is_charged then',
    holds,
  ],
  ['refund: twice', resolve("elsif v_entry.state = 'refunded' then"), 'elsif false then', takes],
  ['refund: what was not taken', resolve("elsif v_entry.state <> 'taken' then"), 'elsif false then', takes],
  ['refund: more than was taken', resolve('elsif p_amount > v_entry.amount then'), 'elsif false then', takes],
  ['refund: all in place of a part', resolve('coalesce(p_amount, v_entry.amount)'), 'v_entry.amount', takes],
  ['refund: what was overdrawn stays', resolve('least(v_entry.over, v_back)'), '0', holds],
  [
    'resolve: the answer is of a window that is over',
    inFunction('quota_resolved', '{schema}.quota_seen(p_row, p_per, p_now)'),
    'p_row',
    holds,
  ],

  [
    'peek: a window that is over',
    seen('v_row.name is null or v_row.ends_at <= p_now then\n      v_row.starts_at'),
    'v_row.name is null then\n      v_row.starts_at',
    takes,
  ],
  [
    'peek: a window begins with its period',
    seen('greatest(v_period.starts_at, v_row.ends_at)'),
    'v_period.starts_at',
    windows,
  ],
  [
    'peek: a stock that is a window by now',
    seen(" or (v_row.ends_at = 'infinity') <> (p_per is null) then"),
    ' then',
    windows,
  ],
  ['peek: what has run out is held', seen('if v_row.holds_until <= p_now then'), 'if false then', takes],
  ['peek: reservations of other windows run out here', seen(' and e.window_id = v_row.window_id'), '', holds],
  ['peek: what is done runs out', seen('and not e.is_done and'), 'and', done],
  [
    'peek: what is held has run out',
    seen(" and e.state = 'held' and e.expires_at <= p_now"),
    " and e.state = 'held'",
    holds,
  ],

  ['maintenance: windows are removed at their end', forget("v_now - interval '1 day'"), 'v_now', windows],
  [
    'maintenance: waits for a row',
    forget('limit p_limit for update skip locked));'),
    'limit p_limit for update));',
    windows,
  ],
  [
    'maintenance: waits for the row of an id',
    forget('for no key update of q skip locked for update'),
    'for no key update of q for update',
    windows,
  ],
  [
    'maintenance: waits for an id',
    forget('order by x.forget_at limit p_limit for update skip locked));'),
    'order by x.forget_at limit p_limit for update));',
    windows,
  ],
  [
    'maintenance: waits for an id that counts',
    forget('for update of x skip locked))'),
    'for update of x))',
    windows,
  ],
  [
    'maintenance: the row of an id is not locked',
    forget('for no key update of q skip locked for update'),
    'for update',
    windows,
  ],
  rewritten(
    'quota_forget',
    'maintenance: ids are forgotten before their time',
    (text) => text.replaceAll('x.forget_at <= v_now and', ''),
    windows,
  ),
  rewritten(
    'quota_forget',
    'maintenance: a reservation that is held is forgotten',
    (text) => text.replaceAll("(x.state <> 'held' or x.expires_at <= v_now)", 'true'),
    windows,
  ),
  [
    'maintenance: what is forgotten was not taken',
    forget('unlisted = q.unlisted + off.taken + off.done'),
    'unlisted = q.unlisted + off.done',
    windows,
  ],
  [
    'maintenance: what is done is not listed when it is forgotten',
    forget('unlisted = q.unlisted + off.taken + off.done'),
    'unlisted = q.unlisted + off.taken',
    done,
  ],
  [
    'maintenance: what is done runs out when it is forgotten',
    forget("case when e.state = 'held' and e.is_done then e.asked else 0 end"),
    '0',
    done,
  ],
  ['maintenance: what is forgotten is held', forget('held = q.held - off.held, '), '', windows],
  [
    'maintenance: what is forgotten is of this window',
    forget(' and q.window_id = x.window_id\n      where'),
    '\n      where',
    explored,
  ],
  [
    'maintenance: what counts is taken for the past',
    forget(' and q.window_id = x.window_id)'),
    ' and false)',
    windows,
  ],
  ['maintenance: the past needs its row', forget(' and q.window_id = x.window_id)'), ')', windows],
  [
    'maintenance: has no batch',
    forget('limit p_limit - v_past\n      for no key'),
    'limit 10 * p_limit\n      for no key',
    windows,
  ],
  [
    'maintenance: has no batch for the past',
    forget('limit p_limit for update skip locked));\n  get diagnostics v_past'),
    'for update skip locked));\n  get diagnostics v_past',
    windows,
  ],
  [
    'maintenance: nobody says that something is left',
    forget('v_past + v_count < p_limit and exists'),
    'false and exists',
    windows,
  ],
]

/** @type {[name: string, file: string, from: string | RegExp, to: string, tests: string[]][]} */
const around = [
  [
    'verify: what is used is not counted',
    'quota-statements.ts',
    'operator(pg_catalog.<>) coalesce(e.taken, 0)',
    'operator(pg_catalog.<) 0',
    takes,
  ],
  [
    'verify: what is held is not counted',
    'quota-statements.ts',
    'q.held operator(pg_catalog.<>) coalesce(e.held, 0)',
    'false',
    takes,
  ],
  [
    'verify: entries of other windows count',
    'quota-statements.ts',
    ' and e.window_id operator(pg_catalog.=) q.window_id',
    '',
    windows,
  ],
  [
    'a zone may be an offset',
    'src/postgres/check-zone.ts',
    '/^(?:utc|gmt|[a-z]+\\/.+)$/i.test(zone)',
    'true',
    periods,
  ],
  [
    'a zone may be an abbreviation',
    'src/postgres/check-zone.ts',
    '/^(?:utc|gmt|[a-z]+\\/.+)$/i',
    '/^[a-z]/i',
    periods,
  ],
  ['slots: none before this very moment', 'period.ts', 'nowMs + 1_000', 'nowMs - 3 * 3_600_000', periods],
  [
    'more than the limit is asked for',
    'quota.ts',
    "if (checkAmount('amount', amount) > limit)",
    'if (false)',
    takes,
  ],
  [
    'a wait is told for more than the limit',
    'quota.ts',
    'asked.amount > asked.limit ? undefined : toMs(take.freeInUs)',
    'toMs(take.freeInUs)',
    tries,
  ],
  ['units may be parts', '../postgres/check-amount.ts', 'Number.isSafeInteger(amount)', 'true', input],
  ['nothing may be taken', '../postgres/check-amount.ts', 'amount >= least', 'amount >= 0', input],
  [
    'a stock has a zone',
    'period.ts',
    "if (timeZone !== undefined) throw new InvalidInputError('timeZone', 'must be given with `per` only')",
    '',
    input,
  ],
  [
    'the zone of a subject is that of all',
    'quota-spec.ts',
    'timeZone === undefined ? this.#period : readPeriod({ ...this.#given, timeZone })',
    'this.#period',
    windows,
  ],
  ['a ledger lists nothing', 'quota.ts', 'this.#spec.ledger ? randomUUID() : undefined', 'undefined', takes],
  [
    'limits of calls that are sent together are one',
    'quota.ts',
    'JSON.stringify([item.asked.subject, item.asked.limit, item.asked.per])',
    'item.asked.subject',
    takes,
  ],
  [
    'subjects of calls that are sent together are one',
    'quota.ts',
    'JSON.stringify([item.asked.subject, item.asked.limit, item.asked.per])',
    "'all'",
    takes,
  ],
  [
    'an id that is held up holds up all',
    'quota.ts',
    'if (!hasIds || !(error instanceof BusyError)) throw error',
    'throw error',
    takes,
  ],
  ['a lock that is not had is an error of the server', 'quota.ts', 'hasWaitedInVain(error)', 'false', takes],
  [
    'a wait is told a millisecond too short',
    'quota.ts',
    'Math.ceil(us / 1_000)',
    'Math.floor(us / 1_000)',
    holds,
  ],
  [
    'maintenance: does not come back to what others have',
    '../ops/maintenance.ts',
    "if (row?.busy === 'true') {",
    'if (false) {',
    windows,
  ],
  [
    'a lane is kept by whoever waits for someone else',
    'batches.ts',
    'setTimeout(leave, LANE_MS)',
    'setTimeout(() => {}, LANE_MS)',
    [claims('batches.test.ts')],
  ],
  ['a lane is given back twice', 'batches.ts', '      if (!isIn) return\n', '', [claims('batches.test.ts')]],
  [
    'whoever waits for nobody waits for other keys',
    'batches.ts',
    'if (waitMs === 0) void',
    'if (waitMs < 0) void',
    [claims('batches.test.ts')],
  ],
  [
    'a hold that was settled is over, though that is rolled back',
    'hold.ts',
    'this.#isOver = tx === undefined',
    'this.#isOver = true',
    holds,
  ],
  [
    'a hold that is over in its transaction is given back alone',
    'hold.ts',
    'if (this.#tx !== undefined && (await',
    'if (this.#tx !== undefined && false && (await',
    holds,
  ],
  ['a reservation forgets its limit', 'hold.ts', '{ ...this.#of, ...options }', 'options', holds],
  [
    'a reservation is given back though it was settled',
    'hold.ts',
    '    if (this.#isOver) return\n',
    '',
    holds,
  ],
  [
    'the end of a block fails where it was settled by its id',
    'hold.ts',
    'if (!(error instanceof HoldEndedError)) throw error',
    'throw error',
    holds,
  ],
  [
    'a reservation is not given back',
    'hold.ts',
    '    if (this.#isOver) return\n',
    '    if (this.#quota) return\n',
    holds,
  ],
  ['those who come at once are sent one by one', 'batches.ts', '.slice(0, most)', '.slice(0, 1)', takes],
  ["answers are anybody's", 'batches.ts', '(answers[n] as', '(answers[0] as', takes],
  [
    'who gathered behind a failure waits for ever',
    'batches.ts',
    '      refuse(batch, error)\n',
    '      refuse(batch, error)\n      throw error\n',
    takes,
  ],
  [
    'a wait to be sent has no end',
    'batches.ts',
    '        reject(new BusyError(subject, waitMs, RETRY_MS))\n',
    '',
    takes,
  ],
]

export const quotaMutations = [
  ...inPeriods.map(([name, from, to, tests]) => ({
    name: `quota: period: ${name}`,
    file: about('period', from),
    from,
    to,
    tests,
  })),
  ...inQuotas.map(([name, from, to, tests]) => ({
    name: `quota: ${name}`,
    file: about(/quota|bound/, from),
    from,
    to,
    tests,
  })),
  ...around.map(([name, file, from, to, tests]) => ({
    name: `quota: ${name}`,
    file: file.startsWith('src/') ? file : claims(file),
    from,
    to,
    tests,
  })),
]
