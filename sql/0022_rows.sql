-- compatible_from: 1
--
-- Writes, locks and claims of rows in the caller's own tables. See the head of 0021_row_helpers.sql.

-- Writes a row if it is as the caller expects. If nothing was written, a read with a new snapshot finds the reason.
-- Either the row is not as expected (`looked`). Or it is by now (`again`), because another transaction has committed in
-- between, and the write is repeated. Or there is no row (`absent`). A call that writes nothing leaves no lock behind
-- in the caller's transaction, and a timeout does not abort it. The read follows after the attempt is undone, so that
-- it never shows what a trigger wrote in vain.
--
-- A row that is as expected while it is locked (`p_lock`), and still is not written, never will be (`unwritten`): a
-- trigger or a policy prevents it. Above READ COMMITTED a read shows the row as it was when the transaction began. So
-- the read locks as well, which fails with 40001 if the row has changed.
--
-- Locks: the row. Two writers of one row cannot both win: the second waits inside its UPDATE, or at the unique index,
-- which then rereads the row as the first has left it. Explored in rows.explore.test.ts.
--
-- row_write, row_lock and row_claim return rows of the caller's table behind two columns of ours, a state and a detail.
-- `p_empty` makes one where there is no row. If the table is not what it was when the statements were made, the state
-- is `another` and the detail its fingerprint. Neither this nor a value that the server refuses (`invalid`) aborts
-- anything: see row_error_kind.
create function {schema}.row_write(
  p_table text, p_fingerprint text, p_write text, p_read text, p_lock text, p_find_lockers text, p_empty text, p_args text[], p_wait_ms integer
)
  returns setof record
  language plpgsql volatile
  set lock_timeout = 0
as $$
declare
  v_until timestamptz := {schema}.row_wait_deadline(p_wait_ms);
  v_is_old boolean := pg_catalog.current_setting('transaction_isolation') operator(pg_catalog.<>) 'read committed'::text;
  v_seen record;
  v_count integer;
  v_sure boolean := false;
  v_state text;
  v_result text;
begin
  v_result := {schema}.table_changed(p_table, p_fingerprint);
  if v_result is not null then -- guard: rows.write-table
    return query execute p_empty using 'another'::text, v_result;
    return;
  end if;
  for v_try in 1..20 loop
    begin
      perform {schema}.row_limit_lock_wait(v_until); -- guard: rows.write-bound
      if v_try operator(pg_catalog.>) 2 and p_lock operator(pg_catalog.<>) ''::text then
        -- point: before the lock
        execute pg_catalog.concat(p_read, p_lock) into v_seen using p_args;
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
        -- point: before the locking read
        execute pg_catalog.concat(p_read, p_lock) into v_seen using p_args;
      end if;
      raise exception 'nothing was written' using errcode = 'DIB02';
    exception
      when sqlstate 'DIB02' then
        null;
      when others then
        v_state := {schema}.row_error_kind(sqlstate);
        v_result := pg_catalog.concat(sqlstate, ' ', sqlerrm);
        if v_state is null then
          raise;
        end if;
    end;
    exit when v_state is not null or v_sure;
    begin
      -- The attempt has released its lock of the table, so another transaction may be changing the table.
      perform {schema}.row_limit_lock_wait(v_until);
      -- point: before the read
      execute p_read into v_seen using p_args;
      get diagnostics v_count = row_count;
      if v_count operator(pg_catalog.>) 0 and v_seen.dibs_state operator(pg_catalog.<>) 'again'::text then
        return next v_seen;
        return;
      end if;
    exception when others then
      v_state := {schema}.row_error_kind(sqlstate);
      v_result := pg_catalog.concat(sqlstate, ' ', sqlerrm);
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
    v_result := {schema}.row_blockers(
      pg_catalog.to_regclass(p_table), {schema}.row_lockers(p_find_lockers, p_args))::text;
  end if;
  return query execute p_empty using coalesce(v_state, 'unwritten'), v_result;
end
$$;

-- Locks rows of the caller's table, and returns them.
--
-- Locks: the rows one after the other, in the order of the statement, which is that of the key. Two callers that lock
-- the same rows meet at the first of them and cannot deadlock. The wait is for all rows together. A caller that cannot
-- get all required rows gets none. Before that, the function tries once more with a new snapshot, which shows a row
-- that was deleted and inserted again meanwhile. Rows returned before the state `anew` do not count. Explored in
-- row-lock.explore.test.ts.
create function {schema}.row_lock(
  p_table text, p_fingerprint text, p_lock text, p_find_lockers text, p_empty text, p_args text[], p_wait_ms integer, p_ids integer, p_all_required integer
)
  returns setof record
  language plpgsql volatile
  set lock_timeout = 0
as $$
declare
  v_until timestamptz := {schema}.row_wait_deadline(p_wait_ms);
  v_bound_until timestamptz;
  v_rows refcursor;
  v_row record;
  v_places text[];
  v_state text;
  v_result text;
begin
  v_result := {schema}.table_changed(p_table, p_fingerprint);
  if v_result is not null then -- guard: rows.lock-table
    return query execute p_empty using 'another'::text, v_result;
    return;
  end if;
  for v_try in 1..2 loop
    v_places := '{}';
    begin
      perform {schema}.row_limit_lock_wait(v_until); -- guard: rows.lock-bound
      v_bound_until := {schema}.row_wait_deadline(10);
      open v_rows no scroll for execute p_lock using p_args;
      loop
        -- Setting the bound again for each row costs more than locking the row.
        if pg_catalog.clock_timestamp() operator(pg_catalog.>) v_bound_until then
          perform {schema}.row_limit_lock_wait(v_until);
          v_bound_until := {schema}.row_wait_deadline(10);
        end if;
        -- point: before the next row
        fetch v_rows into v_row;
        exit when not found;
        v_places := pg_catalog.array_append(v_places, v_row.dibs_detail);
        return next v_row;
      end loop;
      close v_rows;
      -- Two rows for one id do not make up for an id without a row.
      if (select pg_catalog.count(distinct p.place) from pg_catalog.unnest(v_places) p(place)) operator(pg_catalog.<) p_ids
        and (v_try operator(pg_catalog.=) 1 or p_all_required operator(pg_catalog.=) 1) then
        raise exception 'not all are there' using errcode = 'DIB02';
      end if;
      return;
    exception
      when sqlstate 'DIB02' then
        v_state := 'absent';
      when others then
        v_state := {schema}.row_error_kind(sqlstate);
        v_result := pg_catalog.concat(sqlstate, ' ', sqlerrm);
        if v_state is null then
          raise;
        end if;
    end;
    exit when v_try operator(pg_catalog.=) 2 or v_state operator(pg_catalog.<>) 'absent'::text;
    -- point: before the second try
    return query execute p_empty using 'anew'::text, null::text;
  end loop;
  if v_state operator(pg_catalog.=) 'busy'::text then
    v_result := {schema}.row_blockers(
      pg_catalog.to_regclass(p_table), {schema}.row_lockers(p_find_lockers, p_args))::text;
  end if;
  return query execute p_empty using v_state, v_result;
end
$$;

-- Claims rows that nobody has locked, in one statement with SKIP LOCKED.
--
-- Locks: the claimed rows. Two callers cannot both claim a row: the second skips it, or rereads it under the lock. The
-- function waits for no row, so the clock may be read before: PostgreSQL rereads a changed row when it locks it, and
-- sees a renewed lease. Explored in claim-rows.explore.test.ts.
create function {schema}.row_claim(
  p_table text, p_fingerprint text, p_claim text, p_empty text, p_args text[], p_wait_ms integer
)
  returns setof record
  language plpgsql volatile
  set lock_timeout = 0
as $$
declare
  v_until timestamptz := {schema}.row_wait_deadline(p_wait_ms);
  v_now timestamptz;
  v_state text := 'another';
  v_result text := {schema}.table_changed(p_table, p_fingerprint);
begin
  if v_result is null then
    for v_try in 1..5 loop
      begin
        perform {schema}.row_limit_lock_wait(v_until);
        v_now := {schema}.clock(); -- guard: rows.claim-clock
        -- point: before the claim
        return query execute p_claim using p_args, v_now;
        return;
      exception
        -- A row was moved to another partition meanwhile. A caller that takes any rows has no conflict.
        when serialization_failure then
          if v_try operator(pg_catalog.=) 5
            or pg_catalog.current_setting('transaction_isolation') operator(pg_catalog.<>) 'read committed'::text then
            raise;
          end if;
          v_state := null;
        when others then
          v_state := {schema}.row_error_kind(sqlstate);
          v_result := pg_catalog.concat(sqlstate, ' ', sqlerrm);
          if v_state is null then
            raise;
          end if;
      end;
      exit when v_state is not null;
    end loop;
  end if;
  if v_state operator(pg_catalog.=) 'busy'::text then
    v_result := {schema}.row_blockers(pg_catalog.to_regclass(p_table), null)::text;
  end if;
  return query execute p_empty using v_state, v_result;
end
$$;
