// Guards of aggregates: first those in SQL, then those around it.
// biome-ignore-all lint/suspicious/noTemplateCurlyInString: these are pieces of source
import { inFunction } from './mutation.mjs'

const sql = 'sql/0018_aggregate.sql'
const tables = (file) => `src/tables/${file}`
const tested = [tables('aggregate.test.ts')]
const explored = [tables('aggregate.explore.test.ts')]
const transition = [tables('aggregate.test.ts'), tables('aggregate.explore.test.ts')]

const recompute = (text) => inFunction('aggregate_recompute', text)
const refresh = (text) => inFunction('aggregate_refresh', text)

const inSql = [
  [
    'recompute: the parent is not locked first',
    recompute('      execute p_lock into v_places using p_args;\n'),
    "      v_places := (select pg_catalog.array_agg(''::text) from pg_catalog.unnest(p_args));\n",
    explored,
  ],
  [
    'recompute: whichever table has the name',
    recompute('if v_told is not null then'),
    'if false then',
    tested,
  ],
  ['recompute: waits for ever', recompute('      perform {schema}.row_bound(v_until);\n'), '', tested],
  [
    'recompute: a parent that is not there is no matter',
    recompute('p_must operator(pg_catalog.=) 1\n'),
    'false\n',
    tested,
  ],
  [
    'recompute: those that could not be locked are looked at as well',
    recompute('(case when p_must operator(pg_catalog.=) 1 then p_args else v_places end)'),
    'p_args',
    tested,
  ],
  [
    'recompute: an error ends the transaction',
    recompute('        v_state := {schema}.row_fault(sqlstate);\n'),
    '',
    tested,
  ],
  [
    'refresh: marks that came after the count go with the others',
    {
      [Symbol.replace](source) {
        const from = source.indexOf('    -- point: before the marks go\n')
        const end = source.indexOf("    v_state := 'refreshed';\n")
        const part = source.slice(from, end).replace(' and m.seq operator(pg_catalog.=) any (v_seqs)', '')
        const at = part.indexOf('    -- point: before the children are counted\n')
        if (from < 0 || at < 0) return source
        return source.slice(0, from) + part.slice(at) + part.slice(0, at) + source.slice(end)
      },
      toString: () => 'the delete of marks, and its order, in aggregate_refresh',
    },
    '',
    explored,
  ],
  [
    'refresh: marks of parents that are locked by others go, too',
    refresh('      and m.id operator(pg_catalog.=) any (pg_catalog.array_cat(v_locked, v_absent));\n'),
    '      ;\n',
    tested,
  ],
  [
    'refresh: marks of parents that are gone stay',
    refresh('pg_catalog.array_cat(v_locked, v_absent)'),
    'v_locked',
    tested,
  ],
  [
    'marked: those that were not taken are passed over',
    inFunction(
      'aggregate_marked',
      'then (select min(d.seq) - 1 from marked d where d.id not in (select t.id from taken t))',
    ),
    'then (select max(d.seq) from marked d)',
    tested,
  ],
  [
    'put back: only one of its marks goes behind',
    inFunction('aggregate_put_back', ' and m.id operator(pg_catalog.=) v_id;'),
    ' and m.id operator(pg_catalog.=) v_id and m.seq operator(pg_catalog.=) (select pg_catalog.min(i.seq) from {schema}.aggregate_mark i where i.aggregate operator(pg_catalog.=) p_name and i.seq operator(pg_catalog.>) p_after);',
    tested,
  ],
  [
    'view: all who start make it at once',
    inFunction(
      'aggregate_view',
      "  perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('dibs:aggregate_view', 0));\n",
    ),
    '',
    tested,
  ],
  [
    'view: waits for ever',
    inFunction('aggregate_view', '  perform {schema}.bound({schema}.bounded_wait(p_wait_ms));\n'),
    '',
    tested,
  ],
]

const around = [
  [
    'locked in the order they were asked for',
    'aggregate-sql.ts',
    'order by ${this.#order} for no key',
    'for no key',
    tested,
  ],
  [
    'what differs by null is no drift',
    'aggregate-sql.ts',
    '${own} is not null or ${stored} is not null',
    'false',
    tested,
  ],
  [
    'what is marked is a drift',
    'aggregate-sql.ts',
    ' and not exists (select from ${this.#schema}.aggregate_mark',
    ' and true or false and not exists (select from ${this.#schema}.aggregate_mark',
    tested,
  ],
  [
    'verify goes on from the first',
    'aggregate-sql.ts',
    "const behind = isBehind ? ` where ${this.#behind}` : ''",
    "const behind = ''",
    tested,
  ],
  [
    'verify skips those whose first column is the same',
    'aggregate-sql.ts',
    '`${isMore} or ${isSame} and (${rest})`',
    '`${isMore}`',
    tested,
  ],
  [
    'verify locks nothing',
    'verify-aggregate.ts',
    'statements: [sql.lock({ skips: true',
    'statements: [sql.lock({ skips: false',
    tested,
  ],
  [
    'a value is cut off to fit',
    'aggregate-sql.ts',
    '`${column.quoted} = ${value}`',
    '`${column.quoted} = ${value}::${column.stored}`',
    tested,
  ],
  ['what is no aggregate is taken', 'aggregate-check.ts', "if (count === '0')", 'if (false)', tested],
  [
    'what does not fit the column is found out later',
    'aggregate-check.ts',
    "count === '1' ? readProblem(plan) : count",
    'undefined',
    tested,
  ],
  [
    'tables that a migration has changed are not read again',
    'aggregate.ts',
    'if (!mayBeOld) throw error',
    'throw error',
    tested,
  ],
  ['another unique index names a parent', 'aggregate.ts', 'if (!isKey)', 'if (false)', tested],
  [
    'one that fails keeps the others waiting',
    'refresh-marked.ts',
    'if (singles === 0) {',
    'if (singles === 0) {\n        throw error',
    tested,
  ],
  [
    'a mistake of all is tried for each',
    'refresh-marked.ts',
    'if (++done.failed >= MAX_FAILED) throw error',
    'done.failed++',
    tested,
  ],
  [
    'adds though the child was moved by another',
    'counted-transition.ts',
    'sql.add(written, asked.add, write.args)',
    'sql.add(`(select * from "${child.name.name}") as m`, asked.add, write.args)',
    transition,
  ],
  [
    'moves a child whose parent it did not find',
    '../postgres/rows/rows.ts',
    'where exists (select from "dibs_a") or not (${isWanted})',
    '',
    tested,
  ],
  [
    'adds to null',
    'aggregate-sql.ts',
    '(coalesce(${ROW}.${column.quoted}::${numeric}, 0) operator',
    '(${ROW}.${column.quoted}::${numeric} operator',
    tested,
  ],
]

export const aggregateMutations = [
  ...inSql.map(([name, from, to, tests]) => ({ name: `aggregate: ${name}`, file: sql, from, to, tests })),
  ...around.map(([name, file, from, to, tests]) => ({
    name: `aggregate: ${name}`,
    ...{ file: tables(file), from, to, tests },
  })),
]
