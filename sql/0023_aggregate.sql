-- compatible_from: 1
--
-- Sums and counts that a parent row keeps of its children, in the caller's own tables. As in 0022_rows.sql, the
-- statements come from src/tables, and these functions keep the caller's `search_path`. `$1` of each statement is the
-- ids of parents: each a JSON array of the columns of its key, as strings.

-- The parents that must be counted anew. Writers only add: one mark per write and parent. So no writer waits for
-- another, or finds a mark that is being removed before its own write is visible.
--
-- `parent` is the table itself: the same name may mean another table under another search path. A dump has the name and
-- not the number.
create table {schema}.aggregate_mark (
  aggregate text collate "C" not null,
  parent regclass not null,
  seq bigint generated always as identity,
  id text collate "C" not null,
  primary key (aggregate, parent, seq)
);

-- Counts the children of these parents again, and writes the parents.
--
-- Locks: the parents one after the other, in the order of their key, as in row_lock. The wait is for all of them
-- together. The function counts only then: each statement sees what was committed before it began, so it counts what
-- the previous holder of the parent has left. One statement for both would count the children as they were before the
-- wait. Explored in aggregate.explore.test.ts.
--
-- `p_all_required`: all parents must exist, and `p_lock` returns their places; otherwise `absent` returns the places of
-- those that do. Without it, `p_lock` returns the ids that it has locked, and only those are counted.
--
-- A parent that is not written as expected undoes everything (`unwritten`, behind those that are). Without
-- `p_all_required`, `p_unlockable` returns those that could not be locked although no other transaction holds them.
create function {schema}.aggregate_recompute(
  p_table text, p_fingerprint text, p_lock text, p_write text, p_unlockable text, p_find_lockers text, p_empty text, p_args text[], p_wait_ms integer, p_all_required integer
)
  returns setof record
  language plpgsql volatile
  set lock_timeout = 0
as $$
declare
  v_until timestamptz := {schema}.row_wait_deadline(p_wait_ms);
  v_bound_until timestamptz;
  v_rows refcursor;
  v_place text;
  v_places text[];
  v_count integer;
  v_state text;
  v_result text;
begin
  v_result := {schema}.table_changed(p_table, p_fingerprint);
  if v_result is not null then
    return query execute p_empty using 'another'::text, v_result;
    return;
  end if;
  for v_try in 1..2 loop
    v_state := null;
    v_places := '{}';
    begin
      perform {schema}.row_limit_lock_wait(v_until); -- guard: aggregate.recompute-bound
      v_bound_until := {schema}.row_wait_deadline(10);
      open v_rows no scroll for execute p_lock using p_args;
      while pg_catalog.cardinality(v_places) operator(pg_catalog.<) pg_catalog.cardinality(p_args) loop
        -- Setting the bound again for each row costs more than locking the row.
        if pg_catalog.clock_timestamp() operator(pg_catalog.>) v_bound_until then
          perform {schema}.row_limit_lock_wait(v_until);
          v_bound_until := {schema}.row_wait_deadline(10);
        end if;
        -- point: before the next parent is locked
        -- guard: aggregate.recompute-lock-first {
        fetch v_rows into v_place;
        exit when not found;
        -- guard: aggregate.recompute-lock-first }
        v_places := pg_catalog.array_append(v_places, v_place);
      end loop;
      close v_rows;
      if p_all_required operator(pg_catalog.=) 1
        and pg_catalog.cardinality(v_places) operator(pg_catalog.<) pg_catalog.cardinality(p_args) then
        raise exception 'not all are there' using errcode = 'DIB02';
      end if;
      -- point: before the children are counted
      return query execute p_write using (case when p_all_required operator(pg_catalog.=) 1 then p_args else v_places end);
      get diagnostics v_count = row_count;
      if p_all_required operator(pg_catalog.=) 1 and v_count operator(pg_catalog.<) pg_catalog.cardinality(p_args) then
        raise exception 'not all were written' using errcode = 'DIB04';
      end if;
      if p_all_required operator(pg_catalog.=) 0 and pg_catalog.row_security_active(pg_catalog.to_regclass(p_table)::oid) then
        foreach v_place in array p_args loop
          continue when v_place operator(pg_catalog.=) any (v_places);
          begin
            -- point: before a parent that could not be locked
            return query execute p_unlockable using array[v_place];
          exception when lock_not_available then
            null;
          end;
        end loop;
      end if;
      return;
    exception
      when sqlstate 'DIB04' then
        v_state := 'unwritten';
        v_result := null;
      when sqlstate 'DIB02' then
        v_state := 'absent';
        v_result := pg_catalog.array_to_json(v_places)::text;
      when others then
        v_state := {schema}.row_error_kind(sqlstate);
        v_result := pg_catalog.concat(sqlstate, ' ', sqlerrm);
        if v_state is null then
          raise;
        end if;
    end;
    -- The second try sees a parent that was deleted and inserted again meanwhile.
    exit when v_state operator(pg_catalog.<>) 'absent'::text;
  end loop;
  if v_state operator(pg_catalog.=) 'busy'::text then
    v_result := {schema}.row_blockers(
      pg_catalog.to_regclass(p_table), {schema}.row_lockers(p_find_lockers, p_args))::text;
  end if;
  return query execute p_empty using v_state, v_result;
end
$$;

-- Raises an error if a policy may hide rows of this table from the current role. Such a role would count only some rows
-- and store that count for all.
create function {schema}.aggregate_require_full_visibility(p_table text) returns boolean
  language plpgsql stable
as $$
begin
  if pg_catalog.row_security_active(pg_catalog.to_regclass(p_table)::oid) then
    raise exception 'row level security of table % applies to role %', p_table, current_user using errcode = '42D01';
  end if;
  return true;
end
$$;

-- Runs statements only to test whether they are valid. Returns for each its error, its count, or null. The wait is for
-- all of them together.
create function {schema}.aggregate_check_statements(p_statements text[], p_wait_ms integer) returns json
  language plpgsql volatile
  set lock_timeout = 0
as $$
declare
  v_until timestamptz := {schema}.row_wait_deadline(p_wait_ms);
  v_statement text;
  v_result text[] := '{}';
  v_answer text;
begin
  foreach v_statement in array p_statements loop
    begin
      perform {schema}.row_limit_lock_wait(v_until);
      v_answer := null;
      execute v_statement into v_answer;
    exception when others then
      v_answer := pg_catalog.concat(sqlstate, ' ', sqlerrm);
    end;
    v_result := pg_catalog.array_append(v_result, v_answer);
  end loop;
  return pg_catalog.array_to_json(v_result);
end
$$;

-- Creates a view. An object of another kind with this name aborts nothing: its error is returned.
--
-- Locks: an advisory lock, so that processes that start together create the view one at a time.
--
-- Only the owner can replace a view. For another role the function compares it with a temporary view that
-- `p_compare_with` makes and that is undone. If they are equal, there is nothing to do.
create function {schema}.aggregate_create_view(p_create text, p_compare_with text, p_view text, p_wait_ms integer) returns text
  language plpgsql volatile
  set lock_timeout = 0
as $$
begin
  perform {schema}.limit_lock_wait({schema}.wait_below_statement_timeout(p_wait_ms));
  -- point: before the advisory lock
  perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('dibs:aggregate_create_view', 0)); -- guard: aggregate.view-lock
  -- point: before the view
  execute p_create;
  return 'made';
exception
  when invalid_table_definition or wrong_object_type then
    return pg_catalog.concat(sqlstate, ' ', sqlerrm);
  when insufficient_privilege then
    if {schema}.aggregate_is_same_view(p_compare_with, p_view) then
      return 'made';
    end if;
    raise;
end
$$;

-- Returns whether a view equals the temporary view that `p_compare_with` makes. The temporary view is undone.
create function {schema}.aggregate_is_same_view(p_compare_with text, p_view text) returns boolean
  language plpgsql volatile
as $$
declare
  v_is_like boolean;
begin
  execute p_compare_with;
  -- point: before the comparison
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
