// Guards of aggregates: first those in SQL, then those around it.
// biome-ignore-all lint/suspicious/noTemplateCurlyInString: these are pieces of source
import { inFunction } from './mutation.mjs'

const sql = 'sql/0018_aggregate.sql'
const tables = (file) => `src/tables/${file}`
const tested = [tables('aggregate.test.ts')]
const verified = [tables('aggregate-verify.test.ts')]
const viewed = [tables('aggregate-views.test.ts')]
const exact = [tables('aggregate-exact.test.ts')]
const rights = [tables('aggregate-rights.test.ts')]
const explored = [tables('aggregate.explore.test.ts')]
const transition = [tables('aggregate.test.ts'), tables('aggregate.explore.test.ts')]

const recompute = (text) => inFunction('aggregate_recompute', text)
const refresh = (text) => inFunction('aggregate_refresh', text)

const inSql = [
  [
    'refresh: waits for marks that another takes away',
    refresh('      for update skip locked));\n'),
    '      for update));\n',
    tested,
  ],
  [
    'recompute: the parent is not locked first',
    recompute('        fetch v_rows into v_place;\n        exit when not found;\n'),
    "        v_place := '';\n",
    explored,
  ],
  [
    'recompute: whichever table has the name',
    recompute('if v_told is not null then'),
    'if false then',
    tested,
  ],
  [
    'recompute: waits for ever',
    recompute('      perform {schema}.row_bound(v_until);\n      v_bound_until'),
    '      v_bound_until',
    tested,
  ],
  [
    'recompute: waits for each parent as long',
    recompute(
      '          perform {schema}.row_bound(v_until);\n          v_bound_until := {schema}.row_until(10);\n',
    ),
    '          null;\n',
    tested,
  ],
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
    verified,
  ],
  [
    'recompute: what is not written is no matter',
    recompute(
      '      if p_must operator(pg_catalog.=) 1 and v_count operator(pg_catalog.<) pg_catalog.cardinality(p_args) then',
    ),
    '      if false then',
    exact,
  ],
  [
    'recompute: what a policy keeps is not told',
    recompute('p_must operator(pg_catalog.=) 0 and pg_catalog.row_security_active'),
    'false and pg_catalog.row_security_active',
    rights,
  ],
  [
    'recompute: what another has is taken for kept by a policy',
    recompute('          exception when lock_not_available then\n            null;\n'),
    "          exception when lock_not_available then\n            return query execute pg_catalog.replace(p_kept, 'where not exists', 'where true or exists') using array[v_place];\n",
    rights,
  ],
  [
    'counts what a policy shows',
    inFunction(
      'aggregate_sees_all',
      'if pg_catalog.row_security_active(pg_catalog.to_regclass(p_table)::oid) then',
    ),
    'if false then',
    rights,
  ],
  [
    'check: waits for each statement as long',
    inFunction('aggregate_check', 'perform {schema}.row_bound(v_until);'),
    'perform {schema}.bound({schema}.bounded_wait(p_wait_ms));',
    tested,
  ],
  [
    'view: that of another is taken for this one',
    inFunction('aggregate_is_like', 'return coalesce(v_is_like, false);'),
    'return true;',
    rights,
  ],
  [
    'view: that of another is never this one',
    inFunction('aggregate_is_like', 'return coalesce(v_is_like, false);'),
    'return false;',
    rights,
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
        const part = source.slice(from, end).replace(' and i.seq operator(pg_catalog.=) any (v_seqs)', '')
        if (part.length === end - from) return source
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
    refresh('        and i.id operator(pg_catalog.=) any (pg_catalog.array_cat(v_locked, v_absent))\n'),
    '',
    tested,
  ],
  [
    'refresh: marks of parents that are gone stay',
    refresh('pg_catalog.array_cat(v_locked, v_absent)'),
    'v_locked',
    tested,
  ],
  [
    'refresh: the mark of a parent that is being made goes',
    refresh(
      '        group by m.id having pg_catalog.bool_and(pg_catalog.age(m.xmin) operator(pg_catalog.>) pg_catalog.age(v_oldest))) o;\n',
    ),
    '        group by m.id) o;\n',
    tested,
  ],
  [
    'refresh: what was not written counts as written',
    refresh('if v_unwritten operator(pg_catalog.>) 0 then'),
    'if false then',
    tested,
  ],
  [
    'put back: no mark is left',
    inFunction('aggregate_put_back', 'if v_count operator(pg_catalog.>) 0 then'),
    'if false then',
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
    'marked: of any parent, where one was meant',
    inFunction('aggregate_marked', "and (p_id = '' or m.id = p_id)"),
    '',
    tested,
  ],
  [
    'put back: only one of its marks goes behind',
    inFunction('aggregate_put_back', '    for update skip locked));'),
    '    order by i.seq limit 1 for update skip locked));',
    tested,
  ],
  [
    'put back: those of others, too',
    inFunction('aggregate_put_back', 'i.id operator(pg_catalog.=) p_id'),
    'true',
    tested,
  ],
  [
    'forget: marks of tables that are there',
    inFunction(
      'aggregate_forget',
      '    where not exists (select from pg_catalog.pg_class c where c.oid = g.parent)\n',
    ),
    '',
    tested,
  ],
  [
    'forget: only of the first table',
    inFunction('aggregate_forget', '(m.aggregate, m.parent) > (p.aggregate, p.parent)'),
    'false',
    tested,
  ],
  [
    'view: one that cannot be ends the transaction',
    inFunction('aggregate_view', 'invalid_table_definition or wrong_object_type'),
    'division_by_zero',
    viewed,
  ],
  [
    'view: all who start make it at once',
    inFunction(
      'aggregate_view',
      "  perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('dibs:aggregate_view', 0));\n",
    ),
    '',
    viewed,
  ],
  [
    'view: waits for ever',
    inFunction('aggregate_view', '  perform {schema}.bound({schema}.bounded_wait(p_wait_ms));\n'),
    '',
    viewed,
  ],
]

const around = [
  [
    'locked in the order they were asked for',
    'aggregate-sql.ts',
    'order by ${this.order} for no key update of ${ROW}${others}',
    'for no key update of ${ROW}${others}',
    tested,
  ],
  [
    'what differs by null is no drift',
    'kept-column.ts',
    '${own} is not null or ${value} is not null',
    'false',
    verified,
  ],
  [
    'what is marked is a drift',
    'aggregate-drift.ts',
    'then false else ${sql.differs} end',
    'then ${sql.differs} else ${sql.differs} end',
    verified,
  ],
  [
    'what is marked and fails is a drift',
    'aggregate-drift.ts',
    'where case when "dibs_m"."dibs_k0" is not null',
    'where (${sql.differs}) and case when "dibs_m"."dibs_k0" is not null',
    verified,
  ],
  [
    'verify goes on from the first',
    'aggregate-drift.ts',
    "const where = isBehind ? ` where ${behind(sql)}` : ''",
    "const where = ''",
    verified,
  ],
  [
    'verify skips those whose first column is the same',
    'aggregate-drift.ts',
    '`${isMore} or ${isSame} and (${rest})`',
    '`${isMore}`',
    tested,
  ],
  ['verify waits for locks', 'verify-aggregate.ts', 'sql.lockFree,', 'sql.lock,', verified],
  [
    'verify ends at a parent that fails',
    'verify-aggregate.ts',
    '      if (!this.#isOfSome(error)) throw error\n      return error',
    '      throw error',
    verified,
  ],
  [
    'verify ends at a parent that cannot be repaired',
    'verify-aggregate.ts',
    '      if (!this.#isOfSome(error)) throw error\n      if',
    '      throw error\n      if',
    verified,
  ],
  [
    'verify skips a page that fails',
    'verify-aggregate.ts',
    'if (batch > 1) await this.part(Math.ceil(batch / 10), 10)\n      else await',
    'await',
    verified,
  ],
  [
    'verify has no time for a count',
    'verify-aggregate.ts',
    'waitMs: WAIT_MS, limit }',
    'waitMs: WAIT_MS }',
    verified,
  ],
  [
    'verify does not wait for a table',
    'verify-aggregate.ts',
    'waitMs: WAIT_MS, limit }',
    'waitMs: 0, limit }',
    verified,
  ],
  [
    'verify reads each mark for each that differs',
    'aggregate-drift.ts',
    'left join "dibs_m" on ${sql.match(\'"dibs_m"\')}',
    'left join lateral (with ${marked.replace("where", \'where "dibs_g"."dibs_id" is not null and\')} select * from "dibs_m" where ${sql.match(\'"dibs_m"\')} offset 0) as "dibs_m" on true',
    verified,
  ],
  [
    'verify that fails tells of nothing',
    'verify-aggregate.ts',
    '} finally {\n    // Also',
    '} catch (error) {\n    report.driftedCount = 0\n    throw error\n  } finally {\n    // Also',
    verified,
  ],
  [
    'verify goes on for ever',
    'verify-aggregate.ts',
    "if (typeof last === 'string' && last === this.#after)",
    "if (typeof last === 'string' && last === this.#after) last = null\n    if (false)",
    verified,
  ],
  [
    'the text of a key is rounded',
    'exact-text.ts',
    'if (isFloat(column)) return',
    'if (false) return',
    verified,
  ],
  [
    'a repair that a trigger has undone is taken for one',
    'aggregate-drift.ts',
    '(${sql.differs}) as "dibs_wrong")`',
    'false as "dibs_wrong")`',
    exact,
  ],
  [
    'a row that a trigger has changed is taken for what was written',
    'aggregate-sql.ts',
    '(${this.differs}) as ${this.#wrong}`',
    'false as ${this.#wrong}`',
    exact,
  ],
  [
    'a repair that was not done is counted',
    'verify-aggregate.ts',
    'found.filter(({ failed }) => failed === undefined).length',
    'found.length',
    exact,
  ],
  [
    'what is compared is cut off',
    'kept-column.ts',
    'if (!isCutOff(column)) return',
    'if (column) return',
    exact,
  ],
  [
    'spaces that a column does not keep are a drift',
    'kept-column.ts',
    'if (column.maxLength === undefined) return whole',
    'if (column) return whole',
    exact,
  ],
  [
    'children are those of two parents',
    'key-pair.ts',
    'return own.cast === foreign.cast ? isIts :',
    'return true ? isIts :',
    exact,
  ],
  [
    'a child is added to a parent that it is not of',
    'key-pair.ts',
    'return isInteger(foreign) || own.cast === foreign.cast\n',
    'return true\n',
    exact,
  ],
  [
    'a cast is tried where it need not be',
    'key-pair.ts',
    '`${first} and case when ${first} then ${second} else false end`',
    '`${second} and ${first}`',
    exact,
  ],
  [
    'a page takes a name from the parent',
    'aggregate-drift.ts',
    'from (select "dibs_p".${place} as "dibs_n", ${keys.join(\', \')} from "dibs_p") as "dibs_g"',
    'from (select "dibs_p".*, "dibs_p".${place} as "dibs_n", ${keys.join(\', \')} from "dibs_p") as "dibs_g"',
    exact,
  ],
  [
    'a second look takes a name from the parent',
    'aggregate-drift.ts',
    'from ${sql.givenCounted} join ${sql.parent.quoted} as ${ROW} on ${sql.match(\'"dibs_g"\')}\n',
    'from ${sql.given} join ${sql.parent.quoted} as ${ROW} on ${sql.match(\'"dibs_g"\')} cross join lateral ${sql.counted(sql.givenKey)} as "dibs_d"\n',
    exact,
  ],
  ['a view takes the child for the parent', 'aggregate-view.ts', "sql.child.partName('p')", "'p'", exact],
  ['a view has a column of its key twice', 'aggregate-view.ts', 'if (ofKey)', 'if (false)', exact],
  [
    'whoever marks needs rights on the tables',
    'aggregate.ts',
    'const { parent } = await this.#read(options.tx)',
    'await this.#prepare(options.tx, true)\n      const { parent } = await this.#read(options.tx)',
    rights,
  ],
  [
    'a right that is missing is blamed on the expression',
    'aggregate-check.ts',
    'if (forbidden) throw',
    'if (false) throw',
    rights,
  ],
  [
    'a refresh has no time for a count',
    'refresh-marked.ts',
    '    limit: { ms, readOnly: false },\n',
    '',
    verified,
  ],
  [
    'a whole number is cast to one that is too small for it',
    'key-pair.ts',
    'if (areIntegers(own, foreign)) return `${its}',
    'if (false) return `${its}',
    viewed,
  ],
  [
    'a key is cast to a whole number',
    'key-pair.ts',
    'if (isInteger(foreign)) return',
    'if (false) return',
    tested,
  ],
  [
    'a foreign key is cast to a key that is too small for it',
    'key-pair.ts',
    'if (areIntegers(own, foreign)) return `${key}',
    'if (false) return `${key}',
    tested,
  ],
  [
    'a view is of the types of the expressions',
    'aggregate-view.ts',
    "type === undefined ? '' : `::${type}`",
    "''",
    viewed,
  ],
  [
    'a view cuts off what is too long for the column',
    'aggregate-view.ts',
    'column && isCutOff(column) ? column.cast : column?.stored',
    'column?.stored',
    viewed,
  ],
  [
    'a view shows what the reader may not see',
    'aggregate-view.ts',
    "isInvokers ? ' with (security_invoker = true)' : ''",
    "''",
    viewed,
  ],
  [
    'a view cannot get a column of its parent',
    'aggregate-view.ts',
    '...sql.key.map(({ quoted }) => `${parent}.${quoted}`),\n    ...sql.spec.columns.map(([column], n) => viewed(sql, `d."dibs_${n}"`, column)),\n    ...own.filter((column) => !sql.key.includes(column)).map(({ quoted }) => `${parent}.${quoted}`),',
    '...own.map(({ quoted }) => `${parent}.${quoted}`),\n    ...sql.spec.columns.map(([column], n) => viewed(sql, `d."dibs_${n}"`, column)),',
    viewed,
  ],
  [
    'a view is of the columns that the parent had',
    'aggregate.ts',
    '    this.#forget()\n    const sql',
    '    const sql',
    viewed,
  ],
  [
    'a view that cannot be is taken for one',
    'aggregate.ts',
    "if (row?.state !== 'made')",
    'if (false)',
    viewed,
  ],
  [
    'a parent that is locked is not told',
    '../postgres/rows/rows.ts',
    '(await this.#findSecond(tx, call, own.blockers)) ?? own',
    'own',
    tested,
  ],
  [
    'a parent is told where it is the child that is locked',
    '../postgres/rows/rows.ts',
    'second === undefined || ofFirst.some(({ isSure }) => isSure)',
    'second === undefined',
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
    'if (!hasWaitedInVain(error)) return { error }',
    'if (!hasWaitedInVain(error)) throw error',
    tested,
  ],
  [
    'a refresh leaves alone what is right already',
    'aggregate-sql.ts',
    'where ${this.match(\'"dibs_d"\')}\n      returning',
    'where ${this.match(\'"dibs_d"\')} and (${this.differs})\n      returning',
    tested,
  ],
  [
    'two ways to write an id are two parents',
    'aggregate-sql.ts',
    'from ${IDS} group by ${places})',
    'from ${IDS} group by ${places}, "dibs_i"."dibs_id")',
    tested,
  ],
  [
    'tables that are locked are held against each parent',
    'refresh-marked.ts',
    'if (one.error instanceof BusyError && ++this.#inVain === MAX_VAIN) return false',
    '',
    tested,
  ],
  [
    'what a trigger waits for ends the run',
    'refresh-marked.ts',
    'return { error: new BusyError(subject, waitedMs, 100, { cause: error }) }',
    'throw new BusyError(subject, waitedMs, 100, { cause: error })',
    tested,
  ],
  [
    'what a trigger waits for ends what verifies',
    'verify-aggregate.ts',
    'if (this.#repairs && error instanceof BusyError && error.blockers) this.#heldUp = error',
    '',
    tested,
  ],
  [
    'what all triggers wait for is waited for by each parent that is verified',
    'verify-aggregate.ts',
    '++this.#inVain === MAX_VAIN',
    '++this.#inVain === 99',
    tested,
  ],
  [
    'that others have the tables is no error',
    'refresh-marked.ts',
    '  if (run.isHeldUp) throw run.done.error\n',
    '',
    tested,
  ],
  [
    'a mark of a table that is gone fails',
    'aggregate.ts',
    "if (marked?.count === '0')",
    'if (false)',
    tested,
  ],
  [
    'a mark is of no table',
    'aggregate.ts',
    'is not null returning 1)',
    'is not null or true returning 1)',
    tested,
  ],
  [
    'a run begins with the first mark, however many there are',
    'refresh-marked.ts',
    'const isLong = last - first > MARKS',
    'const isLong = false as boolean',
    tested,
  ],
  [
    'a mistake of all is tried for each',
    'refresh-marked.ts',
    'this.done.failed >= MAX_FAILED',
    'false',
    tested,
  ],
  [
    'adds to parents of other children',
    'counted-transition.ts',
    'from ${children} where ${isParentOf(children)}',
    'from ${sql.child.quoted} where ${isParentOf(sql.child.quoted)}',
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
    'counted-transition.ts',
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
