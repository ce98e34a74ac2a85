-- compatible_from: 1
--
-- Counting the parents that have marks, in the background.

-- Counts marked parents, in the order of the marks after `p_after` and up to `p_until`. `p_id`: only this parent, ''
-- for any.
--
-- Locks: the parents, skipping locked ones, which keep their marks; then their marks. A mark is read before the count,
-- and its writer had committed by then, so the count includes its write. A later mark stays. A mark of a missing parent
-- is removed too, unless a transaction that may be inserting the parent is older than the mark. Explored in
-- aggregate.explore.test.ts.
--
-- Each parent is written, even if nothing has changed: a writer with an older snapshot must get a conflict.
--
-- Returns one row: `refreshed`, and the numbers of parents and marks. `last` is the place to continue from, null at the
-- end.
create function {schema}.aggregate_refresh(
  p_table text, p_fingerprint text, p_name text, p_after text, p_until text, p_id text, p_lock text, p_absent text, p_write text, p_empty text,
  p_args text[], p_wait_ms integer, p_parents integer
)
  returns setof record
  language plpgsql volatile
  set lock_timeout = 0
as $$
declare
  v_ids text[];
  v_seqs bigint[];
  v_last bigint;
  v_locked text[];
  v_absent text[];
  v_marks integer;
  v_written integer;
  v_unwritten integer;
  v_oldest xid;
  v_parent oid := pg_catalog.to_regclass(p_table)::oid;
  v_result text := {schema}.table_changed(p_table, p_fingerprint);
  v_state text := 'another';
begin
  if v_result is null then
    perform {schema}.limit_lock_wait({schema}.wait_below_statement_timeout(p_wait_ms));
    -- point: before the marks
    select m.ids, m.seqs, m.last into v_ids, v_seqs, v_last
    from {schema}.aggregate_next_marks(p_name, v_parent, p_after::bigint, p_until::bigint, p_id, p_parents) m;
    -- point: before the parents are locked
    execute pg_catalog.concat('select pg_catalog.array_agg(l.dibs_detail) from (', p_lock, ') l') into v_locked using v_ids;
    -- A parent that a policy hides from this role is not missing.
    if not pg_catalog.row_security_active(v_parent) then
      v_oldest := pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::xid;
      -- point: before the missing parents
      execute p_absent into v_absent using v_ids;
    end if;
    if v_absent is not null then
      -- Read after `v_oldest`: a parent that an open transaction has inserted since keeps its mark.
      -- point: before the parents that may still commit
      select pg_catalog.array_agg(o.id) into v_absent from (
        select m.id from {schema}.aggregate_mark m
        where m.aggregate operator(pg_catalog.=) p_name and m.parent operator(pg_catalog.=) v_parent and m.seq operator(pg_catalog.=) any (v_seqs)
          and m.id operator(pg_catalog.=) any (v_absent)
        group by m.id having pg_catalog.bool_and(pg_catalog.age(m.xmin) operator(pg_catalog.>) pg_catalog.age(v_oldest))) o; -- guard: aggregate.refresh-open-mark
    end if;
    -- point: before the removal of the marks
    delete from {schema}.aggregate_mark m
    where m.ctid operator(pg_catalog.=) any (array(
      select i.ctid from {schema}.aggregate_mark i
      where i.aggregate operator(pg_catalog.=) p_name and i.parent operator(pg_catalog.=) v_parent and i.seq operator(pg_catalog.=) any (v_seqs)
        and i.id operator(pg_catalog.=) any (pg_catalog.array_cat(v_locked, v_absent))
      -- Marks of a missing parent that another call removes are skipped.
      for update skip locked)); -- guard: aggregate.refresh-skip-locked
    get diagnostics v_marks = row_count;
    -- point: before the children are counted
    execute p_write into v_written, v_unwritten using v_locked;
    if v_unwritten operator(pg_catalog.>) 0 then
      raise exception '% parents are not what was written: a trigger or a policy keeps them', v_unwritten using errcode = 'DIB02';
    end if;
    v_state := 'refreshed';
    v_result := pg_catalog.json_build_object('parents', v_written, 'marks', v_marks,
      'locked', coalesce(pg_catalog.cardinality(v_ids), 0) operator(pg_catalog.-) coalesce(pg_catalog.cardinality(v_locked), 0)
        operator(pg_catalog.-) coalesce(pg_catalog.cardinality(v_absent), 0),
      'last', v_last)::text;
  end if;
  return query execute p_empty using v_state, v_result;
end
$$;

-- Returns the next marks of `p_parents` parents, or of one: the distinct ids, the places of the marks, and the place to
-- continue from (null at the end).
create function {schema}.aggregate_next_marks(p_name text, p_parent oid, p_after bigint, p_until bigint, p_id text, p_parents integer)
  returns table (ids text[], seqs bigint[], last bigint)
  language sql stable
  set search_path = ''
as $$
  with marked as materialized (
    select m.seq, m.id from {schema}.aggregate_mark m
    where m.aggregate = p_name and m.parent = p_parent and m.seq > p_after and m.seq <= p_until
      and (p_id = '' or m.id = p_id)
    order by m.seq limit p_parents * 100
  ), taken as materialized (
    select g.id from (select d.id, min(d.seq) as first from marked d group by d.id order by 2 limit p_parents) g
  )
  select (select pg_catalog.array_agg(t.id) from taken t),
    (select pg_catalog.array_agg(d.seq) from marked d where d.id in (select t.id from taken t)),
    case when exists (select from marked d where d.id not in (select t.id from taken t))
      then (select min(d.seq) - 1 from marked d where d.id not in (select t.id from taken t))
      when (select pg_catalog.count(*) from marked) = p_parents * 100 then (select max(d.seq) from marked d) end
$$;

-- Returns the first and the last mark, or null if there are none.
create function {schema}.aggregate_mark_range(p_name text, p_table text) returns bigint[]
  language plpgsql stable
as $$
begin
  return (select case when pg_catalog.min(m.seq) is not null then array[pg_catalog.min(m.seq), pg_catalog.max(m.seq)] end
    from {schema}.aggregate_mark m
    where m.aggregate operator(pg_catalog.=) p_name and m.parent operator(pg_catalog.=) pg_catalog.to_regclass(p_table)::oid);
end
$$;

-- Replaces the marks of a parent that cannot be counted by one new mark at the end. Locks: those marks, skipping the
-- marks that another call is removing.
create function {schema}.aggregate_requeue_mark(p_name text, p_table text, p_id text, p_until bigint, p_wait_ms integer) returns integer
  language plpgsql volatile
  set lock_timeout = 0
as $$
declare
  v_count integer;
begin
  perform {schema}.limit_lock_wait({schema}.wait_below_statement_timeout(p_wait_ms));
  -- point: before the removal
  delete from {schema}.aggregate_mark m
  where m.ctid operator(pg_catalog.=) any (array(
    select i.ctid from {schema}.aggregate_mark i
    where i.aggregate operator(pg_catalog.=) p_name and i.parent operator(pg_catalog.=) pg_catalog.to_regclass(p_table)::oid
      and i.id operator(pg_catalog.=) p_id and i.seq operator(pg_catalog.<=) p_until
    for update skip locked));
  get diagnostics v_count = row_count;
  if v_count operator(pg_catalog.>) 0 then -- guard: aggregate.put-back
    -- point: before the new mark
    insert into {schema}.aggregate_mark (aggregate, parent, id) values (p_name, pg_catalog.to_regclass(p_table), p_id);
  end if;
  return v_count;
end
$$;

-- Deletes marks of dropped tables, which nobody would ever count. Locks: those marks, skipping locked ones, so the
-- function never waits.
--
-- The marks and `pg_class` are read by one statement, with one snapshot. A mark's table was committed before the mark
-- or with it, so where the mark is visible, the table is too, unless it was dropped. After four billion tables a new
-- table may get the number of a dropped one. Then one parent is counted in vain, or the mark is removed because there
-- is no such parent.
create function {schema}.aggregate_delete_orphaned_marks(p_limit integer) returns integer
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_count integer;
begin
  -- point: before the removal
  delete from {schema}.aggregate_mark d where d.ctid = any (array(
    -- Each table once, by jumps in the index: one table may have a million marks.
    with recursive marked as (
      (select m.aggregate, m.parent from {schema}.aggregate_mark m order by m.aggregate, m.parent limit 1)
      union all
      select n.aggregate, n.parent from marked p cross join lateral (
        select m.aggregate, m.parent from {schema}.aggregate_mark m
        where (m.aggregate, m.parent) > (p.aggregate, p.parent) order by m.aggregate, m.parent limit 1) n
    )
    select i.ctid from marked g join {schema}.aggregate_mark i on i.aggregate = g.aggregate and i.parent = g.parent
    where not exists (select from pg_catalog.pg_class c where c.oid = g.parent)
    limit p_limit for update of i skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
