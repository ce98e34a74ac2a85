-- compatible_from: 1
--
-- Taking and reserving of a quota: `quota_take` decides, and the other functions call it, each with another way to wait.

-- Takes each amount that fits, in order, or reserves it (`p_hold_ms`). An amount that does not fit takes nothing. An
-- amount with a known id is not taken again.
--
-- Locks: the row of the subject. Two callers cannot both take the last unit: the second locks the row later and starts
-- from the use that the first has written. The clock, which decides on the window, is read under that lock. With
-- `p_wait_ms` 0 the function does not wait; with null it waits as long as the caller's transaction allows. Explored in
-- quota.explore.test.ts.
create function {schema}.quota_take(
  p_name text, p_subject text, p_limit bigint, p_per json, p_amounts bigint[], p_ids text[], p_hold_ms bigint,
  p_keep_ms bigint, p_wait_ms integer, p_holder text default null
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_row {schema}.quota;
  v_old {schema}.quota;
  v_entry {schema}.quota_entry;
  v_now timestamptz;
  v_amount bigint;
  v_id text;
  v_state text;
  v_free_at timestamptz;
  v_takes json[] := '{}';
begin
  if p_wait_ms > 0 then
    perform {schema}.limit_lock_wait(p_wait_ms);
  end if;
  -- guard: quota.take-clock {
  for v_try in 1..20 loop
    if p_wait_ms = 0 then
      -- point: before the lock without a wait
      select q.* into v_row from {schema}.quota q where q.name = p_name and q.subject = p_subject
      for no key update skip locked;
      if not found then
        -- point: before the read
        perform from {schema}.quota q where q.name = p_name and q.subject = p_subject;
        if found then
          return '{"state": "busy"}';
        end if;
      end if;
    else
      -- point: before the lock
      select q.* into v_row from {schema}.quota q where q.name = p_name and q.subject = p_subject for no key update; -- guard: quota.take-lock
    end if;
    exit when v_row.name is not null;
    -- point: before the insert
    v_row := {schema}.quota_insert(p_name, p_subject, p_limit, p_per);
    exit when v_row.name is not null;
  end loop;
  if v_row.name is null then
    raise lock_not_available using message = 'the quota was made and forgotten twenty times meanwhile';
  end if;

  v_now := {schema}.clock();
  -- guard: quota.take-clock }
  v_old := v_row;
  if v_row.ends_at <= v_now or v_row.holds_until <= v_now or (v_row.ends_at = 'infinity') <> (p_per is null) then
    v_row := {schema}.quota_advance(v_row, p_per, v_now);
  end if;
  for v_n in 1..pg_catalog.cardinality(p_amounts) loop
    v_amount := p_amounts[v_n];
    v_id := p_ids[v_n];
    v_state := 'taken';
    v_free_at := null;
    if v_id is not null then -- guard: quota.take-id
      -- point: before the entry
      select e.* into v_entry from {schema}.quota_entry e where e.name = p_name and e.id = v_id;
      if found then
        v_state := case
          when v_entry.subject <> p_subject or v_entry.requested <> v_amount
            or (v_entry.expires_at is null) <> (p_hold_ms is null)
            -- Only the call that holds a leased reservation can settle it.
            or p_hold_ms is not null and p_holder is null and v_entry.holder is not null then 'mismatch'
          else 'known'
        end;
      end if;
    end if;
    for v_look in 1..2 loop
      exit when v_state <> 'taken' or v_row.used + v_row.overdrawn + v_row.held + v_amount <= p_limit; -- guard: quota.take-limit, quota.take-held
      v_free_at := {schema}.quota_free_at(v_row, v_row.used + v_row.overdrawn + v_row.held + v_amount - p_limit);
      if v_free_at <= v_now and v_look = 1 then
        -- A reservation ended without the lock of the row, or was renewed, and the row does not show that yet.
        v_row.holds_until := v_now;
        v_row := {schema}.quota_advance(v_row, p_per, v_now);
        v_free_at := null;
      else
        v_state := 'refused';
      end if;
    end loop;
    if v_state = 'taken' and v_id is not null then
      -- point: before the new entry
      insert into {schema}.quota_entry as e
        (name, id, subject, state, requested, amount, starts_at, window_id, expires_at, holder, created_at,
         forget_at)
      values
        (p_name, v_id, p_subject, case when p_hold_ms is null then 'taken' else 'held' end::{schema}.quota_state, v_amount,
         v_amount, v_row.starts_at, v_row.window_id, v_now + p_hold_ms * interval '1 millisecond', p_holder, v_now,
         -- A call that outlives its lease must still find the entry, so that is kept a day longer than the lease.
         greatest(case when v_row.ends_at < 'infinity' then v_row.ends_at else v_now end + p_keep_ms * interval '1 millisecond',
           case when p_holder is not null and p_keep_ms is not null
             then v_now + p_hold_ms * interval '1 millisecond' + interval '1 day' end))
      on conflict do nothing
      returning e.* into v_entry;
      if not found then -- guard: quota.take-id-lost
        -- A call for another subject has used the id just now.
        v_state := 'mismatch';
      end if;
    end if;
    if v_state = 'taken' then
      v_row.granted_limit := p_limit;
      if p_hold_ms is null then
        v_row.used := v_row.used + v_amount;
        v_row.unlisted := v_row.unlisted + case when v_id is null then v_amount else 0 end;
      else
        v_row.held := v_row.held + v_amount;
        v_row.holds_until := least(v_row.holds_until, v_entry.expires_at);
      end if;
    end if;
    v_takes := v_takes || pg_catalog.json_build_object(
      'state', v_state, 'used', v_row.used + v_row.overdrawn, 'held', v_row.held,
      'freeInUs', {schema}.micros(v_free_at) - {schema}.micros(v_now),
      'entry', case
        when v_state = 'known' and v_entry.state = 'held' and v_entry.expires_at <= v_now then 'expired'
        when v_state = 'known' then v_entry.state::text
      end,
      'expiresAt', case when p_hold_ms is not null then {schema}.micros(v_entry.expires_at) end);
  end loop;
  if v_row is distinct from v_old then
    -- point: before the write
    update {schema}.quota q set
      starts_at = v_row.starts_at, ends_at = v_row.ends_at, window_id = v_row.window_id, granted_limit = v_row.granted_limit,
      used = v_row.used, held = v_row.held, holds_until = v_row.holds_until, overdrawn = v_row.overdrawn, unlisted = v_row.unlisted
    where q.name = p_name and q.subject = p_subject;
  end if;
  return pg_catalog.json_build_object(
    'state', 'done', 'row', {schema}.quota_row_result(v_row, v_now), 'takes', pg_catalog.array_to_json(v_takes));
end
$$;

-- Inserts the row of a subject, with nothing used. Returns null if another transaction has inserted it, or may be about
-- to. Two callers cannot both insert it: the primary key admits one row.
create function {schema}.quota_insert(p_name text, p_subject text, p_limit bigint, p_per json)
  returns {schema}.quota
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_row {schema}.quota;
  v_period record;
  v_now timestamptz := {schema}.clock();
begin
  select * into v_period from {schema}.period_at(p_per, v_now);
  -- point: before the new row
  insert into {schema}.quota as q (name, subject, starts_at, ends_at, window_id, granted_limit)
  values (p_name, p_subject, v_period.starts_at, v_period.ends_at, {schema}.next_fence(0, v_now), p_limit)
  on conflict do nothing
  returning q.* into v_row;
  return v_row;
end
$$;

-- Runs quota_take without waiting for the row. Returns `busy` if another transaction holds the row, or is about to
-- insert it or to use an id. Only a short wait (`p_wait_ms`) shows the latter. A timeout is undone here, and the caller
-- keeps its own `lock_timeout`. Locks: as quota_take. Explored in acquire.explore.test.ts.
create function {schema}.quota_take_no_wait(
  p_name text, p_subject text, p_limit bigint, p_per json, p_amounts bigint[], p_ids text[], p_hold_ms bigint,
  p_keep_ms bigint, p_holder text, p_wait_ms integer
)
  returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
begin
  perform {schema}.limit_lock_wait(p_wait_ms);
  return {schema}.quota_take(
    p_name, p_subject, p_limit, p_per, p_amounts, p_ids, p_hold_ms, p_keep_ms, 0, p_holder);
exception when lock_not_available then
  return '{"state": "busy"}';
end
$$;

-- Runs quota_take in a caller's transaction. A lock timeout must leave that transaction usable, so each wait is in a
-- subtransaction. The function waits in slices, because `lock_timeout` counts per holder. Locks: as quota_take. A call
-- that takes nothing leaves no lock behind. Explored in quota.explore.test.ts.
create function {schema}.quota_take_joined(
  p_name text, p_subject text, p_limit bigint, p_per json, p_amounts bigint[], p_ids text[], p_hold_ms bigint,
  p_keep_ms bigint, p_wait_ms integer
)
  returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_left_ms integer := {schema}.wait_below_statement_timeout(p_wait_ms);
  v_parts integer := greatest(1, ceil(v_left_ms / 75.0));
  v_wait_deadline timestamptz := {schema}.wait_deadline();
  v_part_ms integer;
  v_result json;
begin
  for v_n in 1..v_parts loop
    v_part_ms := {schema}.wait_slice_ms(v_left_ms, v_parts - v_n + 1);
    begin
      v_result := {schema}.quota_take(
        p_name, p_subject, p_limit, p_per, p_amounts, p_ids, p_hold_ms, p_keep_ms, v_part_ms); -- guard: quota.joined-wait-bound
      if v_result -> 'takes' -> 0 ->> 'state' <> 'taken' then -- guard: quota.joined-unlock
        -- A call that takes nothing leaves no lock behind.
        raise exception 'nothing was taken' using errcode = 'DIB02';
      end if;
      return v_result;
    exception
      when sqlstate 'DIB02' then
        return v_result;
      when lock_not_available then -- guard: quota.joined-busy
        v_left_ms := {schema}.remaining_wait_ms(v_left_ms - v_part_ms, v_wait_deadline);
        exit when v_left_ms <= 0;
    end;
  end loop;
  return '{"state": "busy"}';
end
$$;

-- Runs the fast path of quota_take for amounts without ids, for busy subjects. The fast path needs an existing row, a
-- window that lasts, no expired reservation, and amounts that all fit; or a single amount that does not fit while
-- nothing is reserved. Returns null if quota_take must decide.
--
-- Locks: the row of the subject. One update locks, compares and writes: with a separate statement for the lock, a take
-- lasts half as long again. Two callers cannot both take the last unit: the second update waits for the first and
-- compares again. The clock is read under the lock. If the window ended before that, the take is undone. An amount that
-- does not fit is only read, without a write or a wait. Explored in quota.explore.test.ts.
create function {schema}.quota_take_fast(
  p_name text, p_subject text, p_limit bigint, p_per json, p_amounts bigint[], p_wait_ms integer
)
  returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_used bigint;
  v_held bigint;
  v_starts_at timestamptz;
  v_ends_at timestamptz;
  v_until timestamptz;
  v_now timestamptz;
  v_amount bigint;
  v_total bigint := p_amounts[1];
  v_takes text := '';
begin
  perform {schema}.limit_lock_wait(p_wait_ms);
  for v_n in 2..pg_catalog.cardinality(p_amounts) loop
    v_total := v_total + p_amounts[v_n];
  end loop;
  -- point: before the write
  update {schema}.quota q set used = q.used + v_total, unlisted = q.unlisted + v_total, granted_limit = p_limit
  where q.name = p_name and q.subject = p_subject and q.used + q.overdrawn + q.held + v_total <= p_limit -- guard: quota.plain-limit
    and (q.ends_at = 'infinity') = (p_per is null)
  returning q.used + q.overdrawn, q.held, q.starts_at, q.ends_at, least(q.ends_at, q.holds_until)
  into v_used, v_held, v_starts_at, v_ends_at, v_until;
  if found then
    if v_until <= {schema}.clock() then
      -- point: window ended
      update {schema}.quota q set used = q.used - v_total, unlisted = q.unlisted - v_total
      where q.name = p_name and q.subject = p_subject;
      return null;
    end if;
    v_used := v_used - v_total;
    foreach v_amount in array p_amounts loop
      v_used := v_used + v_amount;
      v_takes := v_takes || ',{"state":"taken","used":' || v_used || ',"held":' || v_held || '}';
    end loop;
  elsif pg_catalog.cardinality(p_amounts) = 1 then
    v_now := {schema}.clock();
    -- point: before the read
    select q.used + q.overdrawn, q.held, q.starts_at, q.ends_at into v_used, v_held, v_starts_at, v_ends_at
    from {schema}.quota q
    where q.name = p_name and q.subject = p_subject and q.used + q.overdrawn + q.held + v_total > p_limit
      and q.ends_at > v_now and q.holds_until is null and (q.ends_at = 'infinity') = (p_per is null);
    if not found then
      return null;
    end if;
    v_takes := ',{"state":"refused","used":' || v_used || ',"held":' || v_held || ',"freeInUs":'
      || coalesce(({schema}.micros(nullif(v_ends_at, 'infinity')) - {schema}.micros(v_now))::text, 'null') || '}';
  else
    return null;
  end if;
  return '{"state":"done","takes":[' || pg_catalog.substr(v_takes, 2) || '],"row":{"used":' || v_used || ',"held":' || v_held
    || case when v_starts_at > '-infinity' then ',"startsAt":' || {schema}.micros(v_starts_at) else '' end
    || case when v_ends_at < 'infinity' then ',"endsAt":' || {schema}.micros(v_ends_at) else '' end || '}}';
end
$$;

-- Runs quota_take for several subjects in one transaction.
--
-- Locks: the rows of the subjects in the given order, which is the same for every caller. The function never waits for
-- a row: a subject that another transaction has locked is `busy`, and the caller takes from it alone. If a subject is
-- about to be inserted, or an id to be used, all fail, and the caller takes from each alone. Explored in
-- quota.many.explore.test.ts.
create function {schema}.quota_take_many(p_name text, p_requests json, p_keep_ms bigint) returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_one json;
  v_result json[] := '{}';
begin
  perform {schema}.limit_lock_wait(10);
  for v_one in select a.value from pg_catalog.json_array_elements(p_requests) a loop
    v_result := v_result || {schema}.quota_take(
      p_name, v_one ->> 'subject', (v_one ->> 'limit')::bigint, v_one -> 'per', (v_one ->> 'amounts')::bigint[],
      (v_one ->> 'ids')::text[], null, p_keep_ms, 0);
  end loop;
  return pg_catalog.array_to_json(v_result);
end
$$;

-- Undoes a take of the current transaction, which still holds its locks, so that no other transaction has seen the
-- take.
create function {schema}.quota_undo_take(p_name text, p_subject text, p_amount bigint, p_id text) returns void
  language plpgsql volatile
  set search_path = ''
as $$
begin
  -- point: before the removal of the entry
  delete from {schema}.quota_entry e where e.name = p_name and e.id = p_id;
  -- point: before the write
  -- A later claim of this transaction may have begun a new window.
  update {schema}.quota q set
    used = greatest(0, q.used - p_amount),
    unlisted = greatest(0, q.unlisted - case when p_id is null then p_amount else 0 end)
  where q.name = p_name and q.subject = p_subject;
end
$$;
