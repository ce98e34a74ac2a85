-- compatible_from: 1
--
-- Writes, locks and claims of rows in tables of the caller's own. The statements come from src/postgres/rows and what builds
-- on it: identifiers are quoted there, and values stand in `p_args`, as texts that each place casts to the type of its column.
--
-- These functions keep the caller's `search_path`, unlike all others: triggers, checks and policies of the caller's table run inside, and
-- the name of the table means what it means to the caller. So operators are named in full, or stand in functions that set the path.

-- What is known of a table as the caller names it: which one it is, what its columns are, which indexes are its keys, and whether others
-- inherit from it (`relhassubclass` stays when the last of them is gone). In a language that keeps its plans: each call asks.
create function {schema}.table_mark(p_table text) returns text
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

-- Its mark, if another table has this name by now, or for this session, or it is not what it was; '' if there is none.
create function {schema}.table_moved(p_table text, p_mark text) returns text
  language plpgsql stable
as $$
declare
  v_mark text := coalesce({schema}.table_mark(p_table), ''::text);
begin
  return case when v_mark operator(pg_catalog.<>) p_mark then v_mark end;
end
$$;

-- Bounds a wait that ends at a moment of the server's own clock, whatever a test makes of the other one.
create function {schema}.row_bound(p_until timestamptz) returns void
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_left_ms integer := ceil(pg_catalog.date_part('epoch', p_until - pg_catalog.clock_timestamp()) * 1000);
begin
  perform {schema}.bound(greatest(1, v_left_ms));
end
$$;

-- Until when all waits of a statement may last.
create function {schema}.row_until(p_wait_ms integer) returns timestamptz
  language sql volatile
  set search_path = ''
as $$
  select pg_catalog.clock_timestamp() + {schema}.bounded_wait(p_wait_ms) * interval '1 millisecond'
$$;

-- What an error means to whoever has sent the statement: `busy`: somebody was in the way for too long; `moved`: the table is not what it was;
-- `invalid`: a value, a condition or a right of the caller's, which the server knows best. None of these need abort a caller's transaction. Null: all others do.
create function {schema}.row_fault(p_sqlstate text) returns text
  language sql immutable
as $$
  select case
    when p_sqlstate operator(pg_catalog.=) '55P03' then 'busy'
    when p_sqlstate operator(pg_catalog.=) any ('{42P01,42703,42704,42883,42804,42P10,428C9}'::text[]) then 'moved'
    when p_sqlstate operator(pg_catalog.~) '^(22|42|54)'
      or p_sqlstate operator(pg_catalog.=) any ('{0A000,21000,3F000,55000}'::text[]) then 'invalid'
  end
$$;

-- Who has locked these rows, as PostgreSQL notes it in them: ids of transactions, or of several that share a lock. A table that is
-- locked as a whole is not waited for.
create function {schema}.row_lockers(p_held text, p_args text[]) returns text[]
  language plpgsql volatile
  set lock_timeout = 1
as $$
declare
  v_lockers text[];
begin
  execute p_held into v_lockers using p_args;
  return v_lockers;
exception when lock_not_available or insufficient_privilege then
  return null;
end
$$;

-- The members of a lock that is shared. Whether the number in a row is that of one lock or of a shared one, PostgreSQL does not tell.
create function {schema}.row_sharers(p_locker text) returns text[]
  language plpgsql stable
  set search_path = ''
as $$
begin
  return (select pg_catalog.array_agg(m.xid::text) from pg_catalog.pg_get_multixact_members(p_locker::xid) m);
exception when others then
  return null;
end
$$;

-- Whom a wait was for, as far as this role may know: at most ten. A lock that was taken inside of a savepoint is noted under a number that leads
-- to nobody once that savepoint is released. Then, and where a row is not to be seen yet, these are all that have written to the table or locked rows
-- of it (`sure`: false).
create function {schema}.row_blockers(p_table regclass, p_lockers text[]) returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_pids integer[];
  v_sure boolean := true;
  v_told json;
begin
  select pg_catalog.array_agg(distinct l.pid) into v_pids
  from pg_catalog.unnest(p_lockers) k(locker)
  cross join lateral pg_catalog.unnest({schema}.row_sharers(k.locker) || k.locker) m(xid)
  join pg_catalog.pg_locks l on l.transactionid::text = m.xid
  where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted and l.pid <> pg_catalog.pg_backend_pid();
  if v_pids is null then
    v_sure := false;
    -- point: before who may be it
    select pg_catalog.array_agg(distinct l.pid) into v_pids
    from pg_catalog.pg_locks l
    join pg_catalog.pg_database d on d.oid = l.database
    join pg_catalog.pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'relation' and l.relation = p_table and d.datname = pg_catalog.current_database() and l.granted
      and l.pid <> pg_catalog.pg_backend_pid()
      and (l.mode not in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')
        or l.mode <> 'AccessShareLock' and a.backend_xid is not null);
  end if;
  -- point: before what is known of them
  select pg_catalog.json_agg(b.told) into v_told
  from (
    select pg_catalog.json_build_object(
      'pid', a.pid, 'application', a.application_name, 'since', {schema}.micros(a.xact_start), 'sure', v_sure,
      'query', case when a.query <> '<insufficient privilege>' then a.query end) as told
    from pg_catalog.pg_stat_activity a
    where a.pid = any (v_pids)
    order by a.xact_start, a.pid
    limit 10
  ) b;
  return coalesce(v_told, '[]');
end
$$;

-- One statement that writes a row if it is as it must be. If it wrote none, a look with a snapshot of its own says why: what is there is not what the
-- writer expects (`looked`); or it is by now (`again`), since another has committed between the two, and it is written once more. No row at
-- all: there is none. Whoever writes nothing leaves no lock behind in the caller's transaction, and running out of time does not abort it. The look
-- comes after what was tried is undone, so that it never tells of what a trigger has written in vain.
--
-- A row that is as it must be while it is locked (`p_lock`), and still is not written, never will be (`unwritten`): a trigger or a policy keeps it. Above READ
-- COMMITTED a look sees what was there when the transaction began: it locks as well, which fails (40001) where the row is another by now.
--
-- Two writers of one row: the second waits inside of its UPDATE (or at the unique index), which then looks at the row as the first has left
-- it. See src/tables/rows.explore.test.ts.
--
-- All three answer rows of the caller's table behind two columns of ours, a state and what is told beside; `p_empty` makes one where there is no row. If the
-- table is not what it was when the statements were made, that is said (`another`, with its mark), and aborts nothing; nor does a value that the server does not
-- take (`invalid`): see row_fault.
create function {schema}.row_write(
  p_table text, p_mark text, p_write text, p_look text, p_lock text, p_held text, p_empty text, p_args text[], p_wait_ms integer
)
  returns setof record
  language plpgsql volatile
  set lock_timeout = 0
as $$
declare
  v_until timestamptz := {schema}.row_until(p_wait_ms);
  v_is_old boolean := pg_catalog.current_setting('transaction_isolation') operator(pg_catalog.<>) 'read committed'::text;
  v_seen record;
  v_count integer;
  v_sure boolean := false;
  v_state text;
  v_told text;
begin
  v_told := {schema}.table_moved(p_table, p_mark);
  if v_told is not null then
    return query execute p_empty using 'another'::text, v_told;
    return;
  end if;
  for v_turn in 1..20 loop
    begin
      perform {schema}.row_bound(v_until);
      if v_turn operator(pg_catalog.>) 2 and p_lock operator(pg_catalog.<>) ''::text then
        -- point: before the lock
        execute pg_catalog.concat(p_look, p_lock) into v_seen using p_args;
        get diagnostics v_count = row_count;
        if v_count operator(pg_catalog.>) 0 then
          v_sure := v_seen.dibs_state operator(pg_catalog.=) 'again'::text;
        end if;
      end if;
      -- point: before the write
      return query execute p_write using p_args;
      if found then
        return;
      end if;
      if v_is_old and not v_sure and p_lock operator(pg_catalog.<>) ''::text then
        -- point: before the look that locks
        execute pg_catalog.concat(p_look, p_lock) into v_seen using p_args;
      end if;
      raise exception 'nothing was written' using errcode = 'DIB02';
    exception
      when sqlstate 'DIB02' then
        null;
      when others then
        v_state := {schema}.row_fault(sqlstate);
        v_told := pg_catalog.concat(sqlstate, ' ', sqlerrm);
        if v_state is null then
          raise;
        end if;
    end;
    exit when v_state is not null or v_sure;
    begin
      -- What was tried has let go of the table: somebody may be changing it by now.
      perform {schema}.row_bound(v_until);
      -- point: before the look
      execute p_look into v_seen using p_args;
      get diagnostics v_count = row_count;
      if v_count operator(pg_catalog.>) 0 and v_seen.dibs_state operator(pg_catalog.<>) 'again'::text then
        return next v_seen;
        return;
      end if;
    exception when others then
      v_state := {schema}.row_fault(sqlstate);
      v_told := pg_catalog.concat(sqlstate, ' ', sqlerrm);
      if v_state is null then
        raise;
      end if;
    end;
    exit when v_state is not null;
    if v_count operator(pg_catalog.=) 0 then
      v_state := 'absent';
      exit;
    end if;
  end loop;
  if v_state operator(pg_catalog.=) 'busy'::text then
    v_told := {schema}.row_blockers(
      pg_catalog.to_regclass(p_table), {schema}.row_lockers(p_held, p_args))::text;
  end if;
  return query execute p_empty using coalesce(v_state, 'unwritten'), v_told;
end
$$;

-- Locks rows one after the other, in the order of the statement, which is that of the key: two who lock the same rows meet at the first of
-- them. The wait is for all of them together. Whoever gets not all that it must have gets none; but first it asks once more, with a snapshot that sees
-- a row which was deleted and made anew by the one that was waited for. What was told before (`anew`) counts no more.
create function {schema}.row_lock(
  p_table text, p_mark text, p_lock text, p_held text, p_empty text, p_args text[], p_wait_ms integer, p_ids integer, p_must integer
)
  returns setof record
  language plpgsql volatile
  set lock_timeout = 0
as $$
declare
  v_until timestamptz := {schema}.row_until(p_wait_ms);
  v_bound_until timestamptz;
  v_rows refcursor;
  v_row record;
  v_places text[];
  v_state text;
  v_told text;
begin
  v_told := {schema}.table_moved(p_table, p_mark);
  if v_told is not null then
    return query execute p_empty using 'another'::text, v_told;
    return;
  end if;
  for v_turn in 1..2 loop
    v_places := '{}';
    begin
      perform {schema}.row_bound(v_until);
      v_bound_until := {schema}.row_until(10);
      open v_rows no scroll for execute p_lock using p_args;
      loop
        -- To say anew for each how long it may take is more work than to lock it.
        if pg_catalog.clock_timestamp() operator(pg_catalog.>) v_bound_until then
          perform {schema}.row_bound(v_until);
          v_bound_until := {schema}.row_until(10);
        end if;
        -- point: before the next row
        fetch v_rows into v_row;
        exit when not found;
        v_places := pg_catalog.array_append(v_places, v_row.dibs_told);
        return next v_row;
      end loop;
      close v_rows;
      -- Two rows for one id do not make up for an id without a row.
      if (select pg_catalog.count(distinct p.place) from pg_catalog.unnest(v_places) p(place)) operator(pg_catalog.<) p_ids
        and (v_turn operator(pg_catalog.=) 1 or p_must operator(pg_catalog.=) 1) then
        raise exception 'not all are there' using errcode = 'DIB02';
      end if;
      return;
    exception
      when sqlstate 'DIB02' then
        v_state := 'absent';
      when others then
        v_state := {schema}.row_fault(sqlstate);
        v_told := pg_catalog.concat(sqlstate, ' ', sqlerrm);
        if v_state is null then
          raise;
        end if;
    end;
    exit when v_turn operator(pg_catalog.=) 2 or v_state operator(pg_catalog.<>) 'absent'::text;
    -- point: before all of them again
    return query execute p_empty using 'anew'::text, null::text;
  end loop;
  if v_state operator(pg_catalog.=) 'busy'::text then
    v_told := {schema}.row_blockers(
      pg_catalog.to_regclass(p_table), {schema}.row_lockers(p_held, p_args))::text;
  end if;
  return query execute p_empty using v_state, v_told;
end
$$;

-- Takes rows that nobody has locked, in one statement. It waits for no row, so the clock may be read before: a lease that was renewed meanwhile is seen,
-- since PostgreSQL looks again at what has changed when it locks it.
create function {schema}.row_claim(
  p_table text, p_mark text, p_claim text, p_empty text, p_args text[], p_wait_ms integer
)
  returns setof record
  language plpgsql volatile
  set lock_timeout = 0
as $$
declare
  v_until timestamptz := {schema}.row_until(p_wait_ms);
  v_now timestamptz;
  v_state text := 'another';
  v_told text := {schema}.table_moved(p_table, p_mark);
begin
  if v_told is null then
    for v_turn in 1..5 loop
      begin
        perform {schema}.row_bound(v_until);
        v_now := {schema}.clock();
        -- point: before the claim
        return query execute p_claim using p_args, v_now;
        return;
      exception
        -- A row was moved to another partition meanwhile, which is no conflict to whoever takes any.
        when serialization_failure then
          if v_turn operator(pg_catalog.=) 5
            or pg_catalog.current_setting('transaction_isolation') operator(pg_catalog.<>) 'read committed'::text then
            raise;
          end if;
          v_state := null;
        when others then
          v_state := {schema}.row_fault(sqlstate);
          v_told := pg_catalog.concat(sqlstate, ' ', sqlerrm);
          if v_state is null then
            raise;
          end if;
      end;
      exit when v_state is not null;
    end loop;
  end if;
  if v_state operator(pg_catalog.=) 'busy'::text then
    v_told := {schema}.row_blockers(pg_catalog.to_regclass(p_table), null)::text;
  end if;
  return query execute p_empty using v_state, v_told;
end
$$;
