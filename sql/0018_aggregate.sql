-- compatible_from: 1
--
-- Sums and counts that a parent row keeps of its children, in tables of the caller's own. As in 0017 the statements come from
-- src/tables, and these functions keep the caller's `search_path`. `$1` in each statement are the ids of parents: each the JSON of an array, the texts of its
-- key's columns.

-- What is to be counted anew. Only ever added to by those who write: a mark for each write and parent, so that none waits for another, and none finds
-- a mark that is just being taken away before its own write can be seen.
--
-- `parent` is the table: under another search path the same name may mean another one. A dump names it, and does not tell its number.
create table {schema}.aggregate_mark (
  aggregate text collate "C" not null,
  parent regclass not null,
  seq bigint generated always as identity,
  id text collate "C" not null,
  primary key (aggregate, parent, seq)
);

-- Locks the parents in the order of their key, and only then looks at their children: each statement sees all that was committed before it began, so whoever
-- had the parent before has left what is counted now. One statement for both would count what was there before it waited.
--
-- `p_must`: all must be there, and `p_lock` answers their places; else `absent` tells the places of those that are. Otherwise it answers the ids of those that it has locked, and
-- no others are looked at. They are locked one after the other, as in row_lock: the wait is for all of them together.
--
-- What is not written, or not what it was to be, undoes all of it (`unwritten`, behind those that are). Without `p_must`, `p_kept` tells of those that could not be locked though nobody has them.
create function {schema}.aggregate_recompute(
  p_table text, p_mark text, p_lock text, p_write text, p_kept text, p_held text, p_empty text, p_args text[], p_wait_ms integer, p_must integer
)
  returns setof record
  language plpgsql volatile
  set lock_timeout = 0
as $$
declare
  v_until timestamptz := {schema}.row_until(p_wait_ms);
  v_bound_until timestamptz;
  v_rows refcursor;
  v_place text;
  v_places text[];
  v_count integer;
  v_state text;
  v_told text;
begin
  v_told := {schema}.table_moved(p_table, p_mark);
  if v_told is not null then
    return query execute p_empty using 'another'::text, v_told;
    return;
  end if;
  for v_turn in 1..2 loop
    v_state := null;
    v_places := '{}';
    begin
      perform {schema}.row_bound(v_until);
      v_bound_until := {schema}.row_until(10);
      open v_rows no scroll for execute p_lock using p_args;
      while pg_catalog.cardinality(v_places) operator(pg_catalog.<) pg_catalog.cardinality(p_args) loop
        -- To say anew for each how long it may take is more work than to lock it.
        if pg_catalog.clock_timestamp() operator(pg_catalog.>) v_bound_until then
          perform {schema}.row_bound(v_until);
          v_bound_until := {schema}.row_until(10);
        end if;
        -- point: before the next parent is locked
        fetch v_rows into v_place;
        exit when not found;
        v_places := pg_catalog.array_append(v_places, v_place);
      end loop;
      close v_rows;
      if p_must operator(pg_catalog.=) 1
        and pg_catalog.cardinality(v_places) operator(pg_catalog.<) pg_catalog.cardinality(p_args) then
        raise exception 'not all are there' using errcode = 'DIB02';
      end if;
      -- point: before the children are counted
      return query execute p_write using (case when p_must operator(pg_catalog.=) 1 then p_args else v_places end);
      get diagnostics v_count = row_count;
      if p_must operator(pg_catalog.=) 1 and v_count operator(pg_catalog.<) pg_catalog.cardinality(p_args) then
        raise exception 'not all were written' using errcode = 'DIB04';
      end if;
      if p_must operator(pg_catalog.=) 0 and pg_catalog.row_security_active(pg_catalog.to_regclass(p_table)::oid) then
        foreach v_place in array p_args loop
          continue when v_place operator(pg_catalog.=) any (v_places);
          begin
            -- point: before one that could not be locked
            return query execute p_kept using array[v_place];
          exception when lock_not_available then
            null;
          end;
        end loop;
      end if;
      return;
    exception
      when sqlstate 'DIB04' then
        v_state := 'unwritten';
        v_told := null;
      when sqlstate 'DIB02' then
        v_state := 'absent';
        v_told := pg_catalog.array_to_json(v_places)::text;
      when others then
        v_state := {schema}.row_fault(sqlstate);
        v_told := pg_catalog.concat(sqlstate, ' ', sqlerrm);
        if v_state is null then
          raise;
        end if;
    end;
    -- One that was deleted and made anew by whoever was waited for is seen the next time.
    exit when v_state operator(pg_catalog.<>) 'absent'::text;
  end loop;
  if v_state operator(pg_catalog.=) 'busy'::text then
    v_told := {schema}.row_blockers(
      pg_catalog.to_regclass(p_table), {schema}.row_lockers(p_held, p_args))::text;
  end if;
  return query execute p_empty using v_state, v_told;
end
$$;

-- Fails for a role to which a policy may show only some of the rows of this table: it would count these, and write that down for all.
create function {schema}.aggregate_sees_all(p_table text) returns boolean
  language plpgsql stable
as $$
begin
  if pg_catalog.row_security_active(pg_catalog.to_regclass(p_table)::oid) then
    raise exception 'row level security of table % applies to role %', p_table, current_user using errcode = '42D01';
  end if;
  return true;
end
$$;

-- Counts anew what was marked, in the order of the marks behind `p_after` and up to `p_until`. A mark that goes was read before the count, under the lock of its parent:
-- whoever has made it had committed by then, so the count sees what it stands for. One that comes later stays. Parents that others have locked keep their marks. A mark of a parent that
-- is not there goes, too, unless somebody who may be making it was at work before the mark. `p_id`: of this parent only, '' for any.
--
-- Each parent is written, also if nothing has changed: whoever counts with an older snapshot must meet a conflict.
--
-- Answers one row: `refreshed`, and what was done; `last` is the place to go on from, null at the end.
create function {schema}.aggregate_refresh(
  p_table text, p_mark text, p_name text, p_after text, p_until text, p_id text, p_lock text, p_absent text, p_write text, p_empty text,
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
  v_told text := {schema}.table_moved(p_table, p_mark);
  v_state text := 'another';
begin
  if v_told is null then
    perform {schema}.bound({schema}.bounded_wait(p_wait_ms));
    -- point: before the marks
    select m.ids, m.seqs, m.last into v_ids, v_seqs, v_last
    from {schema}.aggregate_marked(p_name, v_parent, p_after::bigint, p_until::bigint, p_id, p_parents) m;
    -- point: before the parents are locked
    execute pg_catalog.concat('select pg_catalog.array_agg(l.dibs_told) from (', p_lock, ') l') into v_locked using v_ids;
    -- One that a policy hides from this role is not gone.
    if not pg_catalog.row_security_active(v_parent) then
      v_oldest := pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::xid;
      -- point: before those that are gone
      execute p_absent into v_absent using v_ids;
    end if;
    if v_absent is not null then
      -- Seen after the oldest was: whoever was at work then, and has made the parent since, keeps its mark.
      -- point: before those that may still come
      select pg_catalog.array_agg(o.id) into v_absent from (
        select m.id from {schema}.aggregate_mark m
        where m.aggregate operator(pg_catalog.=) p_name and m.parent operator(pg_catalog.=) v_parent and m.seq operator(pg_catalog.=) any (v_seqs)
          and m.id operator(pg_catalog.=) any (v_absent)
        group by m.id having pg_catalog.bool_and(pg_catalog.age(m.xmin) operator(pg_catalog.>) pg_catalog.age(v_oldest))) o;
    end if;
    -- point: before the marks go
    delete from {schema}.aggregate_mark m
    where m.ctid operator(pg_catalog.=) any (array(
      select i.ctid from {schema}.aggregate_mark i
      where i.aggregate operator(pg_catalog.=) p_name and i.parent operator(pg_catalog.=) v_parent and i.seq operator(pg_catalog.=) any (v_seqs)
        and i.id operator(pg_catalog.=) any (pg_catalog.array_cat(v_locked, v_absent))
      -- What another takes away, of a parent that is not there, is not waited for.
      for update skip locked));
    get diagnostics v_marks = row_count;
    -- point: before the children are counted
    execute p_write into v_written, v_unwritten using v_locked;
    if v_unwritten operator(pg_catalog.>) 0 then
      raise exception '% parents are not what was written: a trigger or a policy keeps them', v_unwritten using errcode = 'DIB02';
    end if;
    v_state := 'refreshed';
    v_told := pg_catalog.json_build_object('parents', v_written, 'marks', v_marks,
      'locked', coalesce(pg_catalog.cardinality(v_ids), 0) operator(pg_catalog.-) coalesce(pg_catalog.cardinality(v_locked), 0)
        operator(pg_catalog.-) coalesce(pg_catalog.cardinality(v_absent), 0),
      'last', v_last)::text;
  end if;
  return query execute p_empty using v_state, v_told;
end
$$;

-- The next marks of so many parents, or of this one: their ids, each once; their places; and the place to go on from, null if there are no more.
create function {schema}.aggregate_marked(p_name text, p_parent oid, p_after bigint, p_until bigint, p_id text, p_parents integer)
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

-- The first and the last of the marks that are there now; null if there are none.
create function {schema}.aggregate_span(p_name text, p_table text) returns bigint[]
  language plpgsql stable
as $$
begin
  return (select case when pg_catalog.min(m.seq) is not null then array[pg_catalog.min(m.seq), pg_catalog.max(m.seq)] end
    from {schema}.aggregate_mark m
    where m.aggregate operator(pg_catalog.=) p_name and m.parent operator(pg_catalog.=) pg_catalog.to_regclass(p_table)::oid);
end
$$;

-- One mark behind all others takes the place of those of a parent that cannot be counted; but not of those that another is just taking away.
create function {schema}.aggregate_put_back(p_name text, p_table text, p_id text, p_until bigint, p_wait_ms integer) returns integer
  language plpgsql volatile
  set lock_timeout = 0
as $$
declare
  v_count integer;
begin
  perform {schema}.bound({schema}.bounded_wait(p_wait_ms));
  -- point: before they go
  delete from {schema}.aggregate_mark m
  where m.ctid operator(pg_catalog.=) any (array(
    select i.ctid from {schema}.aggregate_mark i
    where i.aggregate operator(pg_catalog.=) p_name and i.parent operator(pg_catalog.=) pg_catalog.to_regclass(p_table)::oid
      and i.id operator(pg_catalog.=) p_id and i.seq operator(pg_catalog.<=) p_until
    for update skip locked));
  get diagnostics v_count = row_count;
  if v_count operator(pg_catalog.>) 0 then
    -- point: before the one behind
    insert into {schema}.aggregate_mark (aggregate, parent, id) values (p_name, pg_catalog.to_regclass(p_table), p_id);
  end if;
  return v_count;
end
$$;

-- Removes marks of tables that are gone, which nobody would ever count. Never waits.
--
-- The marks and `pg_class` are read by one statement, with one snapshot. Whoever has made a mark saw its table, which was committed before, or with it: where
-- the mark is seen, so is the table, unless it was dropped. A new table may be given the number of one that was dropped, after four billion others: then a parent of it with
-- such an id is counted once for nothing, or the mark goes since there is no such parent.
create function {schema}.aggregate_forget(p_limit integer) returns integer
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_count integer;
begin
  -- point: before the removal
  delete from {schema}.aggregate_mark d where d.ctid = any (array(
    -- Each table once, from one to the next in the index: there may be a million marks of one.
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

-- What the server says to statements that ask for nothing but whether they can be: for each null, its error, or what it has counted. The wait is for all of
-- them together.
create function {schema}.aggregate_check(p_statements text[], p_wait_ms integer) returns json
  language plpgsql volatile
  set lock_timeout = 0
as $$
declare
  v_until timestamptz := {schema}.row_until(p_wait_ms);
  v_statement text;
  v_told text[] := '{}';
  v_answer text;
begin
  foreach v_statement in array p_statements loop
    begin
      perform {schema}.row_bound(v_until);
      v_answer := null;
      execute v_statement into v_answer;
    exception when others then
      v_answer := pg_catalog.concat(sqlstate, ' ', sqlerrm);
    end;
    v_told := pg_catalog.array_append(v_told, v_answer);
  end loop;
  return pg_catalog.array_to_json(v_told);
end
$$;

-- Makes a view. Processes that start together all make it, and one at a time can. What has the name, and cannot become it, aborts nothing.
--
-- Only the owner can replace it. For others it is compared with one that `p_like` makes, of this session's own, which is undone: there is nothing to do if they are the same.
create function {schema}.aggregate_view(p_create text, p_like text, p_view text, p_wait_ms integer) returns text
  language plpgsql volatile
  set lock_timeout = 0
as $$
begin
  perform {schema}.bound({schema}.bounded_wait(p_wait_ms));
  -- point: before the turn
  perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('dibs:aggregate_view', 0));
  -- point: before the view
  execute p_create;
  return 'made';
exception
  when invalid_table_definition or wrong_object_type then
    return pg_catalog.concat(sqlstate, ' ', sqlerrm);
  when insufficient_privilege then
    if {schema}.aggregate_is_like(p_like, p_view) then
      return 'made';
    end if;
    raise;
end
$$;

create function {schema}.aggregate_is_like(p_like text, p_view text) returns boolean
  language plpgsql volatile
as $$
declare
  v_is_like boolean;
begin
  execute p_like;
  -- point: before they are compared
  select v.relkind operator(pg_catalog.=) 'v'::pg_catalog."char"
      and pg_catalog.pg_get_viewdef(v.oid) operator(pg_catalog.=) pg_catalog.pg_get_viewdef(l.oid)
      and coalesce(v.reloptions, '{}'::text[]) operator(pg_catalog.=) coalesce(l.reloptions, '{}'::text[])
    into v_is_like
  from pg_catalog.pg_class v
  join pg_catalog.pg_class l on l.oid operator(pg_catalog.=) pg_catalog.to_regclass('pg_temp.dibs_like')
  where v.oid operator(pg_catalog.=) pg_catalog.to_regclass(p_view);
  raise exception 'to be undone' using errcode = 'DIB02';
exception
  when sqlstate 'DIB02' then
    return coalesce(v_is_like, false);
  when insufficient_privilege then
    return false;
end
$$;
