// Guards of monitors for rows that are stuck.
// biome-ignore-all lint/suspicious/noTemplateCurlyInString: these are pieces of source

const tables = (file) => `src/tables/${file}`
const statements = tables('monitor-statements.ts')
const conditions = tables('monitor-conditions.ts')
const sets = tables('monitor-sets.ts')
const run = tables('monitor-run.ts')
const indexes = tables('monitor-indexes.ts')
const options = tables('monitor-options.ts')

const tested = [tables('monitor.test.ts')]
const explored = [tables('monitor.explore.test.ts')]
const indexed = [tables('monitor-indexes.test.ts')]
const refused = [tables('monitor-options.test.ts')]

/** @type {[name: string, file: string, from: string | RegExp, to: string, tests: string[]][]} */
const guards = [
  [
    'rows in any state',
    conditions,
    'const conditions = [stateCondition(table, rule)]',
    "const conditions = ['true']",
    tested,
  ],
  [
    'rows of any age',
    conditions,
    'conditions.push(`${at(time)} operator(pg_catalog.<) (${cutoff})`)',
    "conditions.push('true')",
    tested,
  ],
  [
    'an hour that comes twice',
    conditions,
    '      `pg_catalog.timezone(${zone}, ${at(time)}) operator(pg_catalog.<) (${cutoff})`,\n',
    '',
    tested,
  ],
  ['rows that are alive', conditions, 'if (rule.leaseColumn !== undefined) {', 'if (false) {', tested],
  [
    'a lease that ends at this moment is alive',
    conditions,
    '${lease} operator(pg_catalog.<=) $2',
    '${lease} operator(pg_catalog.<) $2',
    tested,
  ],
  [
    'batch: what is locked is waited for',
    statements,
    / limit \$\{limit\} for no key update of \$\{ROW\} skip locked/,
    ' limit ${limit} for no key update of ${ROW}',
    tested,
  ],
  [
    'batch: what has changed since is written over',
    statements,
    / limit \$\{limit\} for no key update of \$\{ROW\} skip locked/,
    ' limit ${limit}',
    explored,
  ],
  [
    'singly: a row that is not stuck any more',
    run,
    'sweepCall(table, this.#rule, write, { only })',
    'verdictCall(table, this.#rule, write, only)',
    explored,
  ],
  [
    'function: a row that another has',
    statements,
    / limit 1 for no key update of \$\{ROW\} skip locked/,
    ' limit 1',
    explored,
  ],
  [
    'function: what is locked is waited for',
    statements,
    / limit 1 for no key update of \$\{ROW\} skip locked/,
    ' limit 1 for no key update of ${ROW}',
    tested,
  ],
  ['the fence stays', sets, 'if (fenceColumn !== undefined) {', 'if (false) {', explored],
  [
    'a fence goes back',
    sets,
    '${rule.schema}.next_fence(coalesce(${at(column)}, 0), $2)',
    '${rule.schema}.micros($2)',
    tested,
  ],
  ['attempts are not counted', sets, 'if (attempts && rule.countsAttempts)', 'if (false)', tested],
  ['attempts are counted twice', sets, 'if (attempts && rule.countsAttempts)', 'if (attempts)', tested],
  ['one attempt too many', sets, '(rule.countsAttempts ? 1 : 0)', '0', tested],
  [
    'a row that was tried too often is put back',
    sets,
    '${at(attempts)}, 0) operator(pg_catalog.>=) ${left}',
    '${at(attempts)}, 0) operator(pg_catalog.<) 0',
    tested,
  ],
  [
    'a row that is put back has an error',
    sets,
    '() => at(column)),',
    "() => args.value('reason', column, rule.reason)),",
    tested,
  ],
  [
    'what is behind is not looked at',
    conditions,
    "const place = 'only' in where ? where.only : where.after",
    "const place = 'only' in where ? where.only : undefined",
    tested,
  ],
  [
    'rows of one moment are one row',
    conditions,
    " or ${behind.map((one) => `(${one})`).join(' or ')})`",
    ')`',
    tested,
  ],
  ['a row that a trigger keeps is done', statements, ", 'unwritten')::text", ", 'requeued')::text", tested],
  [
    'singly: one bad row fails the batch',
    run,
    '      if (isEveryones(error)) throw error\n      return this.#sweepSingly(write)',
    '      throw error',
    tested,
  ],
  [
    'singly: the next row is not tried',
    run,
    '        if (isEveryones(error)) throw error\n        if (isSlow(error))',
    '        throw error\n        if (isSlow(error))',
    tested,
  ],
  ['singly: who is in the way is waited for each time', run, ' || this.#busy >= MAX_BUSY', '', tested],
  [
    'what all rows would meet is met by each',
    run,
    "(error.sqlState === '42501' && error.message.includes('permission denied'))",
    'false',
    tested,
  ],
  ['a run has no end', run, 'const MAX_BATCHES = 100', 'const MAX_BATCHES = 200', tested],
  [
    'a run does not tell that there is more',
    run,
    '    }\n    return true\n  }\n\n  get #isOver',
    '    }\n    return false\n  }\n\n  get #isOver',
    tested,
  ],
  ['a signal is not heard', run, 'this.#signal?.aborted === true', 'false', tested],
  ['function: a conflict is final', run, '{ attempts: 2 }', '{ attempts: 1 }', tested],
  [
    'function: one that throws ends the run',
    run,
    'if (!picked || error instanceof ClosedError || isServers(error)) throw error',
    'throw error',
    tested,
  ],
  [
    'function: a row that is gone was put back',
    run,
    '    throw this.#notWritten(row)\n',
    "    return 'requeued'\n",
    tested,
  ],
  [
    'function: its answer is written apart',
    run,
    'verdictCall(table, this.#rule, write, readPlace(told)), tx)',
    'verdictCall(table, this.#rule, write, readPlace(told)))',
    tested,
  ],
  [
    'function: it is not written with its answer',
    run,
    'pickCall(table, this.#rule, this.#after), tx)',
    'pickCall(table, this.#rule, this.#after))',
    explored,
  ],
  ['a local time is one of any zone', conditions, 'if (timeZone === undefined)', 'if (false)', refused],
  [
    'a row is put back into the state that is stuck',
    options,
    'if (stuck.some((state)',
    'if ([].some((state)',
    refused,
  ],
  [
    'what is wrong with an answer is told when it comes',
    statements,
    "for (const write of ['requeue', 'fail'] as const)",
    'for (const write of [] as const)',
    refused,
  ],
  ['two of one name', 'src/dibs.ts', 'if (this.#monitors.has(monitor.name))', 'if (false)', refused],
  ['indexes: of all rows', indexes, '? predicate !== null', '? true', indexed],
  ['indexes: of other rows', indexes, 'return scans?.length === 0', 'return true', indexed],
  [
    'indexes: what constraints say is looked up',
    conditions,
    '`(select * from ${table.quoted} offset 0)`',
    'table.quoted',
    indexed,
  ],
  [
    'indexes: in another collation',
    indexes,
    ' and k.coll operator(pg_catalog.=) a.attcollation',
    '',
    indexed,
  ],
  [
    'indexes: in another order',
    indexes,
    'column.serves?.includes(operator) === true',
    'column.serves?.includes(EQUAL) === true',
    indexed,
  ],
  [
    'the place of a row is rounded with its time',
    conditions,
    '[timeColumn(table, rule), ...keyOf(table)].map((column) => exactText(column, at(column)))',
    "[timeColumn(table, rule), ...keyOf(table)].map((column) => (column.base?.startsWith(\"timestamp\") ? `pg_catalog.to_json(pg_catalog.date_trunc('millisecond', ${at(column)})) operator(pg_catalog.#>>) '{}'` : exactText(column, at(column))))",
    tested,
  ],
  [
    'the place of a row is rounded with its key',
    tables('exact-text.ts'),
    "base === 'float8' || base === 'float4'",
    'base === undefined',
    tested,
  ],
  [
    'a run that comes to the same row again goes on',
    run,
    'if (JSON.stringify(this.#after) === JSON.stringify(before)) return true',
    'if (before === null) return true',
    tested,
  ],
  [
    'indexes: one that is not valid',
    indexes,
    'filter(({ own, valid }) => own && valid)',
    'filter(({ own }) => own)',
    indexed,
  ],
  [
    'indexes: the planner is not asked',
    indexes,
    'if (names.length > 0 && names.every(',
    'if (false && names.every(',
    indexed,
  ],
  [
    'indexes: some partitions have one',
    indexes,
    'names.every((name) => name !== undefined)',
    'names.some((name) => name !== undefined)',
    indexed,
  ],
]

export const monitorMutations = guards.map(([name, file, from, to, tests]) => ({
  name: `monitors: ${name}`,
  file,
  from,
  to,
  tests,
}))
