// Guards of what is done to rows of the caller's own tables: first those in SQL, then those around it.
// biome-ignore-all lint/suspicious/noTemplateCurlyInString: these are pieces of source
import { about, inFunction } from './mutation.mjs'

const tables = (file) => `src/tables/${file}`
const rows = (file) => `src/postgres/rows/${file}`

const lock = [tables('row-lock.test.ts'), tables('row-lock-waits.test.ts')]
const exploredLock = [tables('row-lock.explore.test.ts')]
const version = [tables('versions.test.ts')]
const last = [tables('last-write-wins.test.ts')]
const transition = [tables('transition.test.ts')]
const insert = [tables('insert-once.test.ts')]
const claim = [tables('claim-rows.test.ts')]
const adjust = [tables('adjust.test.ts')]
const unwritten = [tables('unwritten.test.ts')]
const counted = [rows('version-column.test.ts')]
const changing = [tables('changing-table.test.ts')]
const explored = [tables('rows.explore.test.ts')]
const catalog = [rows('catalog.test.ts')]
const values = [rows('column-value.test.ts')]
const types = [rows('column-type.test.ts')]

const writes = (text) => inFunction('row_write', text)
const locking = (text) => inFunction('row_lock', text)
const claims = (text) => inFunction('row_claim', text)
const blockers = (text) => inFunction('row_blockers', text)

/** @type {[name: string, from: string | RegExp, to: string, tests: string[]][]} */
const inSql = [
  ['write: whichever table has the name', writes('  if v_told is not null then'), '  if false then', catalog],
  ['lock: whichever table has the name', locking('  if v_told is not null then'), '  if false then', catalog],
  ['claim: whichever table has the name', claims('  if v_told is null then'), '  if true then', catalog],
  [
    'a column that came or changed is not noticed',
    inFunction('table_mark', "string_agg(pg_catalog.concat_ws(' ',"),
    "string_agg(pg_catalog.left('', a.attnum), pg_catalog.concat_ws(' ',",
    catalog,
  ],
  [
    'an index in place of another is not noticed',
    inFunction('table_mark', 'pg_catalog.concat(i.indexrelid,'),
    'pg_catalog.concat(0,',
    catalog,
  ],
  [
    'a table that others inherit from by now',
    inFunction('table_mark', 'case when c.relhassubclass and'),
    'case when false and',
    catalog,
  ],
  [
    'a table that others inherit from again',
    inFunction('table_mark', "string_agg(h.inhrelid::text, ',' order by h.inhrelid)"),
    'concat(pg_catalog.count(null))',
    catalog,
  ],
  ...['busy', 'moved', 'invalid'].map((state) => [
    `fault: what is ${state} ends the transaction`,
    inFunction('row_fault', `then '${state}'`),
    'then null',
    state === 'busy' ? transition : state === 'moved' ? catalog : unwritten,
  ]),
  ['fault: all others are no errors', writes('if v_state is null then'), 'if false then', unwritten],
  [
    'write: the look waits as long as it likes',
    writes('      perform {schema}.row_bound(v_until);\n      -- point: before the look\n'),
    '      -- point: before the look\n',
    changing,
  ],
  [
    'claim: a row that was moved is a conflict',
    claims('if v_turn operator(pg_catalog.=) 5'),
    'if true',
    changing,
  ],
  ['write: the caller waits as we did', writes('  set lock_timeout = 0\n'), '', adjust],
  ['lock: the caller waits as we did', locking('  set lock_timeout = 0\n'), '', lock],
  [
    'write: a wait takes as long as it likes',
    writes('      perform {schema}.row_bound(v_until);\n'),
    '',
    transition,
  ],
  [
    'lock: a wait takes as long as it likes',
    locking('      perform {schema}.row_bound(v_until);\n      v_bound'),
    '      v_bound',
    lock,
  ],
  [
    'lock: each row is waited for as long',
    locking('if pg_catalog.clock_timestamp() operator(pg_catalog.>) v_bound_until then'),
    'if false then',
    lock,
  ],
  [
    'a wait outlasts its statement',
    inFunction('row_until', '{schema}.bounded_wait(p_wait_ms)'),
    'p_wait_ms',
    adjust,
  ],
  [
    'write: whoever writes nothing keeps its lock',
    writes("      raise exception 'nothing was written' using errcode = 'DIB02';\n"),
    '',
    version,
  ],
  [
    'write: who finds the row made anew does not write',
    writes('for v_turn in 1..20 loop'),
    'for v_turn in 1..1 loop',
    last,
  ],
  [
    'write: what a trigger keeps is busy',
    writes("coalesce(v_state, 'unwritten')"),
    "coalesce(v_state, 'busy')",
    unwritten,
  ],
  [
    'write: what was there before is what is there',
    writes('if v_is_old and not v_sure'),
    'if false and not v_sure',
    unwritten,
  ],
  [
    'write: what is right by now is refused',
    writes(" and v_seen.dibs_state operator(pg_catalog.<>) 'again'::text then"),
    ' then',
    last,
  ],
  [
    'write: what is not there is waited for',
    writes('if v_count operator(pg_catalog.=) 0 then'),
    'if false then',
    transition,
  ],
  [
    'lock: whoever has not all has some',
    locking('operator(pg_catalog.<) p_ids\n'),
    'operator(pg_catalog.<) 0\n',
    lock,
  ],
  [
    'lock: a row that was made anew is not there',
    locking('for v_turn in 1..2 loop'),
    'for v_turn in 2..2 loop',
    lock,
  ],
  [
    'lock: two rows of one id are two ids',
    locking('pg_catalog.count(distinct p.place)'),
    'pg_catalog.count(p.place)',
    lock,
  ],
  [
    'blockers: those who share are not known',
    inFunction(
      'row_sharers',
      'return (select pg_catalog.array_agg(m.xid::text) from pg_catalog.pg_get_multixact_members(p_locker::xid) m);',
    ),
    'return null;',
    lock,
  ],
  ['blockers: nobody may be it', blockers('if v_pids is null then'), 'if false then', lock],
  ['blockers: who is not sure is sure', blockers('    v_sure := false;\n'), '', lock],
  ['blockers: the table is waited for', inFunction('row_lockers', '  set lock_timeout = 1\n'), '', lock],
  [
    'claim: leases go by another clock',
    claims('v_now := {schema}.clock();'),
    'v_now := pg_catalog.clock_timestamp();',
    claim,
  ],
]

/** @type {[name: string, file: string, from: string | RegExp, to: string, tests: string[]][]} */
const around = [
  [
    'version: any version is written over',
    tables('versions.ts'),
    ' where ${match} and ${isSame}`',
    ' where ${match}`',
    version,
  ],
  [
    'version: it does not grow',
    rows('version-column.ts'),
    'operator(pg_catalog.+) 1::pg_catalog.int2',
    'operator(pg_catalog.+) 0::pg_catalog.int2',
    version,
  ],
  [
    'version: what came in between is refused',
    tables('versions.ts'),
    'again: `coalesce(${isSame}, false)`',
    "again: 'false'",
    explored,
  ],
  [
    'version: it may be written by hand',
    rows('version-column.ts'),
    "taken: [...taken, { name, why: 'it is the version, which grows by itself' }]",
    'taken',
    version,
  ],
  [
    'version: what says which row it is counts',
    rows('version-column.ts'),
    'if (other) throw',
    'if (false) throw',
    counted,
  ],
  ...[
    ['last write', tables('last-write-wins.ts'), '${[...sets, ...counted.sets].join'],
    ['transition', tables('transition.ts'), '    ...counted.sets,\n'],
    ['adjust', tables('adjust.ts'), ', ...counted.sets]'],
  ].map(([name, file, from]) => [
    `version: a ${name} is not counted`,
    file,
    from,
    from.replace('...counted.sets', ''),
    counted,
  ]),
  [
    'lock: rows are locked in any order',
    tables('row-lock.ts'),
    ' order by ${order} ${clause}`',
    ' ${clause}`',
    exploredLock,
  ],
  [
    'lock: each index has an order of its own',
    tables('row-lock.ts'),
    'table.primary.length > 0 ? table.primary : columns',
    'columns',
    lock,
  ],
  [
    'lock: nothing is locked',
    tables('row-lock.ts'),
    ' order by ${order} ${clause}`',
    ' order by ${order}`',
    lock,
  ],
  [
    'lock: rows come in the order of the key',
    tables('row-lock.ts'),
    'ids.flatMap((_, n) => found.get(n + 1) ?? [])',
    '[...found.values()]',
    lock,
  ],
  [
    'lock: outside of a transaction',
    tables('row-lock.ts'),
    'if (tx === undefined || tx === null)',
    'if (false)',
    lock,
  ],
  [
    'transition: from any state',
    tables('transition.ts'),
    ' where ${match} and ${isFrom}`',
    ' where ${match}`',
    transition,
  ],
  [
    'transition: what came in between is refused',
    tables('transition.ts'),
    'again: `coalesce(${isFrom}, false)`',
    "again: 'false'",
    explored,
  ],
  [
    'adjust: any amount is taken',
    tables('adjust.ts'),
    ' where ${match} and ${fits}`',
    ' where ${match}`',
    adjust,
  ],
  [
    'adjust: what came in between is refused',
    tables('adjust.ts'),
    'again: `coalesce(${fits}, false)`',
    "again: 'false'",
    explored,
  ],
  [
    'adjust: what the type cannot hold ends the transaction',
    tables('adjust.ts'),
    '[max?.text, column.most]',
    '[max?.text]',
    adjust,
  ],
  [
    'adjust: something is added to infinity',
    tables('adjust.ts'),
    "${sum} operator(pg_catalog.<) 'Infinity'::${numeric}",
    'true',
    adjust,
  ],
  [
    'adjust: what is rounded away counts',
    tables('adjust.ts'),
    '10n ** BigInt(zeros) !== 0n',
    '1n !== 0n',
    adjust,
  ],
  [
    'adjust: parts of a unit are rounded',
    tables('adjust.ts'),
    'if (delta.places > places)',
    'if (false)',
    adjust,
  ],
  [
    'adjust: bounds that nothing fits',
    tables('adjust.ts'),
    'compareDecimals(least, most) > 0',
    'false',
    adjust,
  ],
  [
    'adjust: a number that was rounded is taken',
    tables('decimal.ts'),
    '(!Number.isInteger(value) || Number.isSafeInteger(value))',
    'true',
    adjust,
  ],
  [
    'insert: a row that is there is an error',
    tables('insert-once.ts'),
    ' on conflict (${arbiter}) do nothing',
    '',
    insert,
  ],
  [
    'insert: a row that is gone again is given',
    tables('insert-once.ts'),
    "is null then 'again'",
    "is null then 'looked'",
    explored,
  ],
  [
    'insert: what was rounded is looked for as it was given',
    tables('insert-once.ts'),
    'args.stored(',
    'args.value(',
    insert,
  ],
  [
    'insert: null is a value like any other',
    tables('insert-once.ts'),
    'if (value === undefined || value === null)',
    'if (false)',
    insert,
  ],
  [
    'claim: a lease is no matter',
    tables('claim-rows.ts'),
    /if \(lease\) conditions\.push\([^\n]*\n/,
    '\n',
    claim,
  ],
  [
    'claim: what is locked is waited for',
    tables('claim-rows.ts'),
    'for no key update skip locked`',
    'for no key update`',
    claim,
  ],
  ['claim: nothing is locked', tables('claim-rows.ts'), ' for no key update skip locked`', '`', claim],
  [
    'claim: a fence goes back',
    tables('claim-rows.ts'),
    '${schema}.next_fence(coalesce(${ROW}.${column.quoted}, 0), $2)',
    '${schema}.micros($2)',
    claim,
  ],
  [
    'claim: a claim that nobody holds',
    tables('claim-rows.ts'),
    '  if (tx === undefined)\n',
    '  if (false)\n',
    claim,
  ],
  ['claim: values stand in texts', tables('claim-where.ts'), "|'(?:[^']|'')*'|", '|', claim],
  ['unique: a condition is no matter', rows('catalog.ts'), ' and i.indpred is null', '', insert],
  ['unique: rows of children count', rows('catalog.ts'), 'if (told.isParent)', 'if (false)', catalog],
  [
    'unique: it compares as it likes',
    rows('catalog.ts'),
    'where not f.opcdefault or i.indcollation[o.n] operator(pg_catalog.<>) c.attcollation',
    'where false',
    catalog,
  ],
  ['unique: it may be checked later', rows('catalog.ts'), ' and i.indimmediate', '', insert],
  ['key: it may be checked later', rows('catalog.ts'), 'if (key && !key.immediate)', 'if (false)', catalog],
  ['key: it may not be valid', rows('catalog.ts'), 'if (key && !key.valid)', 'if (false)', catalog],
  [
    'lock: arrays and composite types are taken apart',
    tables('row-lock.ts'),
    'return element !== undefined || isComposite',
    'return false',
    lock,
  ],
  [
    'a domain is compared as such',
    rows('catalog.ts'),
    'told.domain ? `::${told.behind} ${told.equals}` : told.equals',
    'told.equals',
    types,
  ],
  ['a value is cast to its domain', rows('catalog.ts'), 'cast: told.behind', 'cast: told.sql', types],
  ['what is too long is cut off', rows('column-value.ts'), 'if (bytes <= most)', 'if (true)', types],
  ['null is a word', rows('row-args.ts'), 'if (text === null) return `null::${sql}`', '', types],
  [
    'null in an array is a word',
    rows('row-args.ts'),
    'if (column.element && hasNull(value))',
    'if (false)',
    types,
  ],
  ['what the database makes is given', rows('row-args.ts'), 'if (column.isGenerated)', 'if (false)', insert],
  ['the key is changed', rows('row-args.ts'), '  if (found) throw', '  if (false) throw', transition],
  [
    'what was refused before a migration is refused after it',
    rows('rows.ts'),
    'if (mayBeOld) return undefined',
    '',
    catalog,
  ],
  [
    'a table is read again for each that has its name',
    rows('rows.ts'),
    'known = this.#catalog.recall(given, told)',
    'known = undefined',
    catalog,
  ],
  [
    'a type that was renamed is asked for again',
    rows('rows.ts'),
    '    this.#catalog.forget(table)\n',
    '',
    catalog,
  ],
  [
    'a whole number of any size is sent',
    rows('column-value.ts'),
    'whole < least || whole > most',
    'false',
    values,
  ],
  ['any text is sent as a label', rows('column-value.ts'), 'labels.includes(value)', 'true', values],
  ['any text is sent as a time', rows('column-value.ts'), '|| isTime(value, base))', '|| true)', values],
]

export const tableMutations = [
  ...inSql.map(([name, from, to, tests]) => ({
    name: `rows: ${name}`,
    file: about('rows', from),
    from,
    to,
    tests,
  })),
  ...around.map(([name, file, from, to, tests]) => ({ name: `rows: ${name}`, file, from, to, tests })),
]
