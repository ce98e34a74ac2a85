-- compatible_from: 1
--
-- Taking one of the permits of a lock.

-- Takes a permit that is free or whose lease has expired. The function waits only for short transactions on the row.
-- Otherwise it returns:
--
--   held     all permits have a live lease; returns the one that ends first
--   guarded  a lease has expired, but a transaction that is guarded by it is still open
--   busy     a permit is being released, taken or renewed
--
-- `p_wanted_ms`: the caller will wait. The held permits are marked for that long, or at least for half of it. `held` is
-- then returned only if each permit is marked, so that every later release knows of the waiting caller.
--
-- Locks: one row at a time, first with `no key update`, then with `update`, which also excludes guards. Two callers
-- cannot both take a permit: the second gets the row lock later and finds a live lease. Explored in
-- lock.explore.test.ts.
create function {schema}.lock_acquire(p_name text, p_permits integer, p_holder text, p_lease_ms bigint, p_wanted_ms integer)
  returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_now timestamptz;
  v_seen record;
  v_lock {schema}.lock;
  v_taken_from json;
  v_state text := 'held';
  v_passed integer[] := '{}';
  v_is_marked boolean := p_wanted_ms = 0;
begin
  perform {schema}.require_durable_commit(); -- guard: lock.acquire-durable
  -- The fast path for a lock of one permit that is released, or that is held and, where the caller will wait, marked. It
  -- costs half of the slow path.
  if p_permits = 1 then
    v_now := {schema}.clock();
    -- point: before the fast path
    update {schema}.lock l set
      holder = p_holder, acquired_at = v_now, expires_at = v_now + p_lease_ms * interval '1 millisecond',
      fence = {schema}.next_fence(l.fence, v_now), taken_from = null -- guard: lock.acquire-fast-fence
    from (
      select i.ctid from {schema}.lock i
      where i.name = p_name and i.permit = 0 and i.expires_at = '-infinity' for update skip locked) i -- guard: lock.acquire-fast-free, lock.acquire-fast-lock
    where l.ctid = i.ctid
    returning l.* into v_lock;
    if v_lock.name is not null then
      return {schema}.lock_acquired_result(v_lock, v_now);
    end if;
    -- point: before the fast read
    select l.* into v_lock from {schema}.lock l where l.name = p_name and l.permit = 0;
    if v_lock.expires_at > v_now and v_lock.holder <> p_holder
      and (p_wanted_ms = 0 or v_lock.wanted_until > v_now + p_wanted_ms / 2 * interval '1 millisecond') then
      return {schema}.lock_result('held', v_lock, v_now);
    end if;
  end if;
  for v_try in 1..10 + p_permits loop
    v_now := {schema}.clock();
    -- point: before the read
    -- The order: a permit that this call has taken before, if the answer was lost; free permits; expired ones; the one
    -- that will expire first.
    select p.permit, l.fence, l.holder, l.expires_at, l.holder = p_holder as is_mine, l.expires_at > v_now as is_held
    into v_seen
    from pg_catalog.generate_series(0, p_permits - 1) p(permit) -- guard: lock.acquire-permits
    left join {schema}.lock l on l.name = p_name and l.permit = p.permit
    where p.permit <> all (v_passed)
    order by coalesce(l.holder = p_holder and l.expires_at > v_now, false) desc, coalesce(l.expires_at, '-infinity'), p.permit
    limit 1;
    if v_seen.is_mine and v_seen.is_held then
      -- point: before the second read
      -- Another call may have taken the permit between the two reads, so the second names the fence of the first.
      select l.* into v_lock from {schema}.lock l
      where l.name = p_name and l.permit = v_seen.permit and l.fence = v_seen.fence and l.expires_at > v_now;
      continue when not found;
      return {schema}.lock_acquired_result(v_lock, v_now);
    end if;
    -- All permits are held or skipped.
    if v_seen.permit is null or v_seen.is_held then -- guard: lock.acquire-live-lease
      exit when v_is_marked;
      v_is_marked := true;
      -- point: before the mark
      update {schema}.lock l set wanted_until = v_now + p_wanted_ms * interval '1 millisecond'
      where l.name = p_name and l.permit = any (array(
        select i.permit from {schema}.lock i
        where i.name = p_name and i.permit < p_permits
          and i.wanted_until <= v_now + p_wanted_ms / 2 * interval '1 millisecond'
        order by i.permit for no key update skip locked));
      continue;
    end if;
    if v_seen.fence is null then
      begin
        perform {schema}.limit_lock_wait(10);
        -- point: before the insert
        insert into {schema}.lock as l (name, permit, holder, fence, expires_at, acquired_at)
        values (p_name, v_seen.permit, p_holder, {schema}.next_fence(0, v_now),
          v_now + p_lease_ms * interval '1 millisecond', v_now)
        on conflict do nothing
        returning l.* into v_lock;
      exception when lock_not_available then
        v_state := 'busy';
        v_passed := v_passed || v_seen.permit;
        continue;
      end;
      continue when v_lock.name is null;
      return {schema}.lock_acquired_result(v_lock, v_now);
    end if;
    if p_wanted_ms > 0 then
      -- A transaction that has locked this row takes or releases the permit. At its end it notifies if the row is marked,
      -- which is checked below. If waiting callers queued here, the row lock would pass from caller to caller, each until
      -- its commit is on the disk, and the holder would wait behind them.
      -- point: before the lock of a waiting caller
      select l.* into v_lock from {schema}.lock l
      where l.name = p_name and l.permit = v_seen.permit for no key update skip locked; -- guard: lock.acquire-takeover-lock
      if not found then
        v_passed := v_passed || v_seen.permit;
        continue;
      end if;
    else
      begin
        perform {schema}.limit_lock_wait(10); -- guard: lock.acquire-bound
        -- point: before the lock
        select l.* into v_lock from {schema}.lock l
        where l.name = p_name and l.permit = v_seen.permit for no key update;
      exception when lock_not_available then
        v_state := 'busy';
        v_passed := v_passed || v_seen.permit;
        continue;
      end;
      -- The update may wait for the extension of the table's file by others.
      perform pg_catalog.set_config('lock_timeout', '0', true);
    end if;
    v_now := {schema}.clock(); -- guard: lock.acquire-clock
    continue when v_lock.name is null or v_lock.expires_at > v_now; -- guard: lock.acquire-recheck
    -- point: before the guards
    perform from {schema}.lock l where l.name = p_name and l.permit = v_seen.permit for update skip locked; -- guard: lock.acquire-guard, lock.acquire-skip-locked
    if not found then
      v_state := 'guarded';
      v_passed := v_passed || v_seen.permit;
      continue;
    end if;
    v_taken_from := case when v_lock.expires_at > '-infinity' then pg_catalog.json_build_object(
      'holder', v_lock.holder, 'fence', v_lock.fence, 'expiredAt', {schema}.micros(v_lock.expires_at)) end;
    -- point: before the takeover
    update {schema}.lock l set
      holder = p_holder, fence = {schema}.next_fence(l.fence, v_now), acquired_at = v_now, -- guard: lock.acquire-fence
      expires_at = v_now + p_lease_ms * interval '1 millisecond', taken_from = v_taken_from
    where l.name = p_name and l.permit = v_seen.permit
    returning l.* into v_lock;
    return {schema}.lock_acquired_result(v_lock, v_now);
  end loop;
  if v_state = 'held' and p_wanted_ms > 0 then
    -- A mark that is lost in a crash is made again at the next poll. So the commit need not wait for the disk while it
    -- holds the row.
    perform pg_catalog.set_config('synchronous_commit', 'off', true);
    -- point: before the check of the marks
    -- A permit that could not be marked is being released or renewed.
    perform from {schema}.lock l where l.name = p_name and l.permit < p_permits
      and l.wanted_until <= v_now + p_wanted_ms / 2 * interval '1 millisecond';
    if found then
      v_state := 'busy';
    end if;
  end if;
  return pg_catalog.json_build_object('state', v_state, 'holder', v_seen.holder,
    'leftMs', case when v_seen.is_held
      then greatest(1, ceil(pg_catalog.date_part('epoch', v_seen.expires_at - v_now) * 1000)) end,
    'leaseUntil', case when v_seen.is_held then {schema}.micros(v_seen.expires_at) end);
end
$$;
