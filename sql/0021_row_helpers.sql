-- compatible_from: 1
--
-- Writes, locks and claims of rows in the caller's own tables. The statements come from src/tables: identifiers are
-- quoted there, and values are in `p_args`, as strings that each place casts to the type of its column.
--
-- Unlike all others, these functions keep the caller's `search_path`: triggers, checks and policies of the caller's
-- table run inside, and the name of the table means what it means to the caller. So operators have their full names, or
-- stand in functions that set the path.

-- Returns a fingerprint of a table: its id, its columns, the indexes that are its keys, and the tables that inherit
-- from it (`relhassubclass` stays when the last of them is gone). The function is in PL/pgSQL, which keeps plans,
-- because each call runs it.
create function {schema}.table_fingerprint(p_table text) returns text
  language plpgsql stable
as $$
begin
  return (
    select pg_catalog.concat_ws('.', c.oid, coalesce(case when c.relhassubclass and c.relkind operator(pg_catalog.<>) 'p'::pg_catalog."char" then (
      select pg_catalog.string_agg(h.inhrelid::text, ',' order by h.inhrelid)
      from pg_catalog.pg_inherits h
      where h.inhparent operator(pg_catalog.=) c.oid
    ) end, ''::text), pg_catalog.hashtextextended((
      select pg_catalog.string_agg(pg_catalog.concat_ws(' ',
        a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated, a.attidentity), ',' order by a.attnum)
      from pg_catalog.pg_attribute a
      where a.attrelid operator(pg_catalog.=) c.oid and a.attnum operator(pg_catalog.>) 0::pg_catalog.int2
    ), 0), (
      select pg_catalog.string_agg(pg_catalog.concat(i.indexrelid, case when i.indisvalid then '+' end), ',' order by i.indexrelid)
      from pg_catalog.pg_index i
      where i.indrelid operator(pg_catalog.=) c.oid and i.indisunique
    ))
    from pg_catalog.pg_class c
    where c.oid operator(pg_catalog.=) pg_catalog.to_regclass(p_table)
  );
end
$$;

-- Returns null if the table is the same. Otherwise returns its fingerprint: the table has changed, or another table has
-- this name by now or in this session. Returns '' if there is no such table.
create function {schema}.table_changed(p_table text, p_fingerprint text) returns text
  language plpgsql stable
as $$
declare
  v_fingerprint text := coalesce({schema}.table_fingerprint(p_table), ''::text);
begin
  return case when v_fingerprint operator(pg_catalog.<>) p_fingerprint then v_fingerprint end;
end
$$;

-- Limits each lock wait so that it ends at a moment of the server's own clock, also where a test moves the other clock.
create function {schema}.row_limit_lock_wait(p_until timestamptz) returns void
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_left_ms integer := ceil(pg_catalog.date_part('epoch', p_until - pg_catalog.clock_timestamp()) * 1000);
begin
  perform {schema}.limit_lock_wait(greatest(1, v_left_ms));
end
$$;

-- Returns the time at which all waits of a statement must end.
create function {schema}.row_wait_deadline(p_wait_ms integer) returns timestamptz
  language sql volatile
  set search_path = ''
as $$
  select pg_catalog.clock_timestamp() + {schema}.wait_below_statement_timeout(p_wait_ms) * interval '1 millisecond'
$$;

-- Classifies an error for the caller. `busy`: a wait for a lock took too long. `moved`: the table has changed.
-- `invalid`: the server refuses a value, a condition or a right of the caller. None of these need abort the caller's
-- transaction. Null: any other error, which does.
create function {schema}.row_error_kind(p_sqlstate text) returns text
  language sql immutable
as $$
  select case
    when p_sqlstate operator(pg_catalog.=) '55P03' then 'busy' -- guard: rows.busy
    when p_sqlstate operator(pg_catalog.=) any ('{42P01,42703,42704,42883,42804,42P10,428C9}'::text[]) then 'moved'
    when p_sqlstate operator(pg_catalog.~) '^(22|42|54)'
      or p_sqlstate operator(pg_catalog.=) any ('{0A000,21000,3F000,55000}'::text[]) then 'invalid'
  end
$$;

-- Returns the holders of the locks of these rows, as PostgreSQL records them in the rows: ids of transactions, or of
-- groups that share a lock. The function does not wait for a table that is locked as a whole.
create function {schema}.row_lockers(p_find_lockers text, p_args text[]) returns text[]
  language plpgsql volatile
  set lock_timeout = 1
as $$
declare
  v_lockers text[];
begin
  execute p_find_lockers into v_lockers using p_args;
  return v_lockers;
exception when lock_not_available or insufficient_privilege then
  return null;
end
$$;

-- Returns the members of a shared lock, or null. PostgreSQL does not tell whether the number in a row is that of one
-- transaction or of a group.
create function {schema}.row_lock_members(p_locker text) returns text[]
  language plpgsql stable
  set search_path = ''
as $$
begin
  return (select pg_catalog.array_agg(m.xid::text) from pg_catalog.pg_get_multixact_members(p_locker::xid) m);
exception when others then
  return null;
end
$$;

-- Returns the transactions that a statement waited for, as far as this role may know: at most ten. A lock that was
-- taken inside a savepoint is recorded under an id that cannot be resolved once the savepoint is released. Then, and
-- where a row is not visible yet, the result has all transactions that have written to the table or locked rows of it
-- (`sure`: false).
create function {schema}.row_blockers(p_table regclass, p_lockers text[]) returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_pids integer[];
  v_sure boolean := true;
  v_result json;
begin
  select pg_catalog.array_agg(distinct l.pid) into v_pids
  from pg_catalog.unnest(p_lockers) k(locker)
  cross join lateral pg_catalog.unnest({schema}.row_lock_members(k.locker) || k.locker) m(xid)
  join pg_catalog.pg_locks l on l.transactionid::text = m.xid
  where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted and l.pid <> pg_catalog.pg_backend_pid();
  if v_pids is null then
    v_sure := false;
    -- point: before the possible blockers
    select pg_catalog.array_agg(distinct l.pid) into v_pids
    from pg_catalog.pg_locks l
    join pg_catalog.pg_database d on d.oid = l.database
    join pg_catalog.pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'relation' and l.relation = p_table and d.datname = pg_catalog.current_database() and l.granted
      and l.pid <> pg_catalog.pg_backend_pid()
      and (l.mode not in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
        or l.mode <> 'AccessShareLock' and a.backend_xid is not null);
  end if;
  -- point: before the details of the blockers
  select pg_catalog.json_agg(b.blocker) into v_result
  from (
    select pg_catalog.json_build_object(
      'pid', a.pid, 'application', a.application_name, 'since', {schema}.micros(a.xact_start), 'sure', v_sure,
      'query', case when a.query <> '<insufficient privilege>' then a.query end) as blocker
    from pg_catalog.pg_stat_activity a
    where a.pid = any (v_pids)
    order by a.xact_start, a.pid
    limit 10
  ) b;
  return coalesce(v_result, '[]');
end
$$;
