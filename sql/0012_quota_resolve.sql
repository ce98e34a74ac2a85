-- compatible_from: 1
--
-- Ending takes and reservations, and deleting their records.

-- Ends an entry. `settle` turns a reservation into a take of `p_amount` (`p_if_late` says what to do if the reservation
-- has expired). `void` releases a reservation. `refund` returns an amount that was taken, to the window that was
-- charged. Each entry ends once: the same end again changes nothing. Only the call that holds a leased reservation
-- (`p_holder`) can end it, because that call would otherwise work on without it.
--
-- Locks: the row of the subject, then the entry, in the order that all calls keep. Two ends of one entry cannot both
-- count: the second locks the entry later and finds the state that the first has written. Explored in
-- quota.explore.test.ts.
create function {schema}.quota_resolve(
  p_name text, p_id text, p_action text, p_amount bigint, p_if_late text, p_limit bigint, p_per json, p_wait_ms integer,
  p_holder text default null
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_row {schema}.quota;
  v_old {schema}.quota;
  v_seen {schema}.quota_entry;
  v_entry {schema}.quota_entry;
  v_now timestamptz;
  v_is_late boolean;
  v_is_counted boolean;
  v_is_charged boolean;
  v_back bigint;
  v_beyond bigint;
  v_fits boolean;
begin
  if p_wait_ms > 0 then
    perform {schema}.limit_lock_wait(p_wait_ms);
  end if;
  for v_try in 1..20 loop
    -- point: before the first read
    select e.* into v_seen from {schema}.quota_entry e where e.name = p_name and e.id = p_id;
    if not found then
      return '{"state": "absent"}';
    end if;
    -- point: before the lock
    select q.* into v_row from {schema}.quota q where q.name = p_name and q.subject = v_seen.subject for no key update; -- guard: quota.resolve-lock
    -- point: before the lock of the entry
    select e.* into v_entry from {schema}.quota_entry e where e.name = p_name and e.id = p_id for no key update; -- guard: quota.resolve-recheck
    if not found then
      return '{"state": "absent"}';
    end if;
    -- The locked row is not the one of the entry if the id was deleted and used again, or if an expired reservation was
    -- settled where there was no row. Then the loop tries again.
    exit when v_entry.subject = v_seen.subject and (v_row.name is not null or v_entry.window_id = v_seen.window_id);
    v_entry := null;
  end loop;
  if v_entry.id is null then
    raise lock_not_available using message = 'the id was forgotten and used anew twenty times meanwhile';
  end if;
  v_now := {schema}.clock();
  v_old := v_row;
  if v_entry.state = 'held' and v_entry.is_done then
    v_entry.state := 'taken';
    v_entry.amount := v_entry.requested;
    if v_row.window_id = v_entry.window_id then
      v_row.held := v_row.held - v_entry.requested;
      v_row.used := v_row.used + v_entry.requested;
    end if;
  end if;
  v_is_counted := v_entry.state = 'held';
  v_is_late := v_entry.state = 'expired' or v_entry.state = 'held' and v_entry.expires_at <= v_now; -- guard: quota.resolve-late
  if v_is_late then
    v_entry.state := 'expired';
  end if;
  if v_entry.state = 'held' and v_entry.holder is not null and v_entry.holder is distinct from p_holder then -- guard: quota.resolve-holder
    return {schema}.quota_resolve_result('leased', v_entry, v_row, p_per, v_now, v_entry.expires_at);
  end if;

  if p_action = 'settle' then
    if v_entry.state = 'taken' and v_entry.expires_at is not null and v_entry.amount = p_amount then
      return {schema}.quota_resolve_result('settled', v_entry, v_row, p_per, v_now);
    elsif v_entry.state <> 'held' and not v_is_late or v_is_late and p_if_late = 'fail' then -- guard: quota.settle-over
      return {schema}.quota_resolve_result('over', v_entry, v_row, p_per, v_now);
    elsif p_amount > v_entry.requested then
      return {schema}.quota_resolve_result('too much', v_entry, v_row, p_per, v_now);
    end if;
  elsif p_action = 'void' then
    if v_entry.state = 'void' then
      return {schema}.quota_resolve_result('void', v_entry, v_row, p_per, v_now);
    elsif v_entry.state not in ('held', 'expired') then
      return {schema}.quota_resolve_result('over', v_entry, v_row, p_per, v_now);
    end if;
  elsif v_entry.state = 'refunded' then -- guard: quota.refund-twice
    return {schema}.quota_resolve_result('already', v_entry, v_row, p_per, v_now);
  elsif v_entry.state <> 'taken' then
    return {schema}.quota_resolve_result('over', v_entry, v_row, p_per, v_now);
  elsif p_amount > v_entry.amount then
    return {schema}.quota_resolve_result('too much', v_entry, v_row, p_per, v_now);
  end if;

  if p_action = 'settle' and v_is_late then
    -- The amount is taken again, in the current window. The row may have been deleted.
    if v_row.name is null then
      -- point: before the insert
      perform {schema}.quota_take(p_name, v_entry.subject, p_limit, p_per, '{}', null, null, null, null);
      -- point: before the lock of the new row
      select q.* into v_row from {schema}.quota q where q.name = p_name and q.subject = v_entry.subject for no key update;
      v_now := {schema}.clock();
    end if;
    v_old := v_row;
    -- The row may show a later time, because an end that could not lock the row may have expired this entry earlier.
    v_row.holds_until := v_now;
    v_row := {schema}.quota_advance(v_row, p_per, v_now);
    v_fits := p_amount = 0 or v_row.used + v_row.overdrawn + v_row.held + p_amount <= p_limit;
    v_beyond := case when v_fits then 0 else p_amount end;
    if v_fits or p_if_late = 'overdraw' then
      v_entry.state := 'taken';
      v_entry.amount := p_amount;
      v_entry.overdrawn := v_beyond;
      -- The entry is kept as long after the window that is charged now as after its first window. A stock has none.
      if pg_catalog.isfinite(v_entry.starts_at) and pg_catalog.isfinite(v_row.starts_at) then
        v_entry.forget_at := v_entry.forget_at + (v_row.starts_at - v_entry.starts_at);
      end if;
      v_entry.starts_at := v_row.starts_at;
      v_entry.window_id := v_row.window_id;
      v_row.granted_limit := case when v_fits and p_amount > 0 then p_limit else v_row.granted_limit end;
      v_row.used := v_row.used + p_amount - v_beyond;
      v_row.overdrawn := v_row.overdrawn + v_beyond;
    end if;
  else
    -- The end changes the window that was charged. If that window is over, the row stays as it is.
    v_fits := true;
    v_is_charged := coalesce(v_row.window_id = v_entry.window_id, false);
    if p_action = 'refund' then
      v_back := coalesce(p_amount, v_entry.amount);
      v_beyond := least(v_entry.overdrawn, v_back);
      if v_is_charged then
        v_row.used := v_row.used - (v_back - v_beyond);
        v_row.overdrawn := v_row.overdrawn - v_beyond;
      end if;
      v_entry.state := 'refunded';
      v_entry.amount := v_entry.amount - v_back;
      v_entry.overdrawn := v_entry.overdrawn - v_beyond;
    else
      v_entry.state := case p_action when 'settle' then 'taken' else 'void' end;
      v_entry.amount := case p_action when 'settle' then p_amount else 0 end;
      if v_is_charged and v_is_counted then
        v_row.held := v_row.held - v_entry.requested;
        v_row.used := v_row.used + v_entry.amount;
      end if;
    end if;
  end if;
  if v_fits or p_if_late = 'overdraw' then
    -- point: before the write of the entry
    update {schema}.quota_entry e
    set state = v_entry.state, amount = v_entry.amount, overdrawn = v_entry.overdrawn, starts_at = v_entry.starts_at,
      window_id = v_entry.window_id, forget_at = v_entry.forget_at
    where e.name = p_name and e.id = p_id;
  end if;
  if v_row is distinct from v_old then
    -- point: before the write
    update {schema}.quota q set
      starts_at = v_row.starts_at, ends_at = v_row.ends_at, window_id = v_row.window_id, granted_limit = v_row.granted_limit,
      used = v_row.used, held = v_row.held, holds_until = v_row.holds_until, overdrawn = v_row.overdrawn, unlisted = v_row.unlisted
    where q.name = p_name and q.subject = v_entry.subject;
  end if;
  if not (v_fits or p_if_late = 'overdraw') then
    return {schema}.quota_resolve_result('exceeded', v_entry, v_row, p_per, v_now,
      case when p_amount <= p_limit
        then {schema}.quota_free_at(v_row, v_row.used + v_row.overdrawn + v_row.held + p_amount - p_limit) end);
  end if;
  return {schema}.quota_resolve_result(
    case p_action when 'settle' then 'settled' when 'void' then 'void' else 'refunded' end, v_entry, v_row, p_per, v_now);
end
$$;

-- Returns the result of quota_resolve: the entry, and the row as it is now.
create function {schema}.quota_resolve_result(
  p_state text, e {schema}.quota_entry, p_row {schema}.quota, p_per json, p_now timestamptz,
  p_free_at timestamptz default null
)
  returns json
  language sql stable
as $$
  select pg_catalog.json_build_object(
    'state', p_state, 'was', e.state, 'subject', e.subject, 'requested', e.requested, 'amount', e.amount, 'overdrawn', e.overdrawn,
    'row', case when (p_row).name is not null
      then {schema}.quota_row_result({schema}.quota_preview(p_row, p_per, p_now), p_now) end,
    'freeInUs', {schema}.micros(p_free_at) - {schema}.micros(p_now))
$$;

-- Runs quota_resolve in a caller's transaction, with the waits of quota_take_joined. A call that changes nothing leaves
-- no lock behind. Explored in quota.explore.test.ts.
create function {schema}.quota_resolve_joined(
  p_name text, p_id text, p_action text, p_amount bigint, p_if_late text, p_limit bigint, p_per json, p_wait_ms integer
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
      v_result := {schema}.quota_resolve(p_name, p_id, p_action, p_amount, p_if_late, p_limit, p_per, v_part_ms);
      if v_result ->> 'state' not in ('settled', 'void', 'refunded') then
        -- A call that changes nothing leaves no lock behind.
        raise exception 'nothing was changed' using errcode = 'DIB02';
      end if;
      return v_result;
    exception
      when sqlstate 'DIB02' then
        return v_result;
      when lock_not_available then
        v_left_ms := {schema}.remaining_wait_ms(v_left_ms - v_part_ms, v_wait_deadline);
        exit when v_left_ms <= 0;
    end;
  end loop;
  return '{"state": "busy"}';
end
$$;

-- Deletes expired entries, and rows whose window has been over for a day: a clock that goes back finds the row until
-- then. Deletes at most `p_limit` rows and as many entries. `is_busy` says that some entries must be deleted later.
--
-- Locks: entries that still count together with their rows. The function skips locked ones, so it never waits. Explored
-- in quota.many.explore.test.ts.
create function {schema}.quota_delete_expired(p_limit integer, out count integer, out is_busy boolean)
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz := {schema}.clock();
  v_past integer;
  v_count integer;
begin
  -- point: before the rows
  delete from {schema}.quota q where q.ctid = any (array(
    select r.ctid from {schema}.quota r where r.ends_at <= v_now - interval '1 day' and r.ends_at < 'infinity'
    order by r.ends_at limit p_limit for update skip locked)); -- guard: quota.maintenance-skip-locked
  get diagnostics count = row_count;
  -- Entries of a past window do not count any more, and the window does not come again, so the row need not be locked.
  -- point: before the entries of past windows
  delete from {schema}.quota_entry e where e.ctid = any (array(
    select x.ctid from {schema}.quota_entry x
    where x.forget_at <= v_now and (x.state <> 'held' or x.expires_at <= v_now)
      and not exists (
        select from {schema}.quota q where q.name = x.name and q.subject = x.subject and q.window_id = x.window_id)
    order by x.forget_at limit p_limit for update skip locked)); -- guard: quota.maintenance-batch
  get diagnostics v_past = row_count;
  -- The other entries count, so they are subtracted from the row under its lock. Entries of locked rows are skipped.
  -- point: before the entries that count
  with removed as (
    delete from {schema}.quota_entry e where e.ctid = any (array(
      select x.ctid from {schema}.quota_entry x
      join {schema}.quota q on q.name = x.name and q.subject = x.subject and q.window_id = x.window_id
      where x.forget_at <= v_now and (x.state <> 'held' or x.expires_at <= v_now)
      order by x.forget_at limit p_limit - v_past
      for no key update of q skip locked for update of x skip locked)) -- guard: quota.maintenance-entry-row-lock
    returning e.name, e.subject, e.amount, case when e.state = 'held' then e.requested else 0 end as held,
      case when e.state = 'held' and e.is_done then e.requested else 0 end as done, e.state
  ), off as (
    select r.name, r.subject, pg_catalog.count(*) as entries, pg_catalog.sum(r.held) as held, pg_catalog.sum(r.done) as done,
      coalesce(pg_catalog.sum(r.amount) filter (where r.state <> 'held'), 0) as taken
    from removed r group by r.name, r.subject
  ), written as (
    update {schema}.quota q set
      used = q.used + off.done, held = q.held - off.held, unlisted = q.unlisted + off.taken + off.done
    from off where q.name = off.name and q.subject = off.subject
    returning off.entries
  )
  select coalesce(pg_catalog.sum(w.entries), 0) into v_count from written w;
  count := count + v_past + v_count;
  -- point: before the check for more
  is_busy := v_past + v_count < p_limit and exists (
    select from {schema}.quota_entry e
    join {schema}.quota q on q.name = e.name and q.subject = e.subject and q.window_id = e.window_id
    where e.forget_at <= v_now and (e.state <> 'held' or e.expires_at <= v_now));
end
$$;
