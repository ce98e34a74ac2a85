-- compatible_from: 1
--
-- Locks as a part of `acquire`. Only `acquire_take_lock` bounds its waits itself, and it never waits for a holder.
--
-- These functions do not use those of 0016_lock_acquire.sql and 0017_lock_hold.sql, because a compound claim follows
-- other rules. It takes one row lock, `for update skip locked`, where lock_acquire takes two and waits, to tell a
-- guarded lock from a busy one and to mark it for waiting callers. A joined claim has no lease: its row lock is the
-- claim. A release commits together with the outcome, so it must wait for the disk, which lock_release does not, and it
-- raises the fence.

-- Takes a lock that is free or whose lease has expired. Without `p_lease_ms` the lock belongs to the transaction: other
-- callers find its row locked until the transaction ends, and then a free lock.
--
-- Locks: the row. The function never waits for a holder: a lock that another transaction holds, takes or guards is
-- refused. Two callers cannot both take it. The primary key admits one insert of a missing row. For an existing row,
-- the second caller finds it locked, or finds a live lease. Explored in acquire.explore.test.ts.
create function {schema}.acquire_take_lock(p_name text, p_permit integer, p_holder text, p_lease_ms bigint) returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_lock {schema}.lock;
  v_now timestamptz;
  v_holder text := coalesce(p_holder, 'tx:' || pg_catalog.pg_current_xact_id()::text);
begin
  for v_try in 1..10 loop
    -- point: before the read
    select l.* into v_lock from {schema}.lock l where l.name = p_name and l.permit = p_permit;
    if not found then
      v_now := {schema}.clock();
      begin
        perform {schema}.limit_lock_wait(10);
        -- point: before the insert
        insert into {schema}.lock as l (name, permit, holder, fence, expires_at, acquired_at)
        values (p_name, p_permit, v_holder, {schema}.next_fence(0, v_now),
          coalesce(v_now + p_lease_ms * interval '1 millisecond', '-infinity'), v_now)
        on conflict do nothing
        returning l.* into v_lock;
      exception when lock_not_available then
        return '{"state": "busy"}';
      end;
      if v_lock.name is not null then
        return {schema}.lock_result('taken', v_lock, v_now);
      end if;
      continue;
    end if;
    v_now := {schema}.clock();
    if v_lock.expires_at > v_now then -- guard: acquire.lock-take-live-lease
      if v_lock.holder = v_holder then
        -- This call has taken the lock before, and its answer was lost.
        return {schema}.lock_result('taken', v_lock, v_now);
      end if;
      return {schema}.lock_result('held', v_lock, v_now);
    end if;
    -- point: before the lock
    select l.* into v_lock from {schema}.lock l where l.name = p_name and l.permit = p_permit for update skip locked; -- guard: acquire.lock-take-skip-locked, acquire.lock-take-lock
    if not found then
      return '{"state": "busy"}';
    end if;
    v_now := {schema}.clock();
    continue when v_lock.expires_at > v_now; -- guard: acquire.lock-take-recheck
    -- point: before the takeover
    update {schema}.lock l set
      holder = v_holder, fence = {schema}.next_fence(l.fence, v_now), acquired_at = v_now, -- guard: acquire.lock-take-fence
      expires_at = coalesce(v_now + p_lease_ms * interval '1 millisecond', '-infinity')
    where l.name = p_name and l.permit = p_permit
    returning l.* into v_lock;
    return {schema}.lock_result('taken', v_lock, v_now);
  end loop;
  return '{"state": "busy"}';
end
$$;

-- Returns whether a lock is free, in the form of acquire_one. Locks nothing.
create function {schema}.acquire_peek_lock(p_name text, p_permit integer) returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_lock {schema}.lock;
  v_now timestamptz;
begin
  -- point: before the read
  select l.* into v_lock from {schema}.lock l where l.name = p_name and l.permit = p_permit;
  v_now := {schema}.clock();
  return pg_catalog.json_build_object(
    'granted', coalesce(v_lock.expires_at <= v_now, true), 'isBusy', false, 'isFinal', false, 'state', 'held',
    'lock', {schema}.lock_result('held', v_lock, v_now));
end
$$;

-- Locks the row of a lock and compares the fence. Returns `held`, `lost`, or `released`: an earlier call of this holder
-- has released the lock, and its answer was lost. Explored in acquire.explore.test.ts.
create function {schema}.acquire_check_lock(p_name text, p_permit integer, p_holder text, p_fence bigint) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_lock {schema}.lock;
begin
  -- point: before the lock
  select l.* into v_lock from {schema}.lock l where l.name = p_name and l.permit = p_permit for no key update; -- guard: acquire.lock-state-lock
  return case
    when v_lock.fence = p_fence then 'held' -- guard: acquire.lock-state-fence
    when v_lock.holder = p_holder and v_lock.expires_at = '-infinity' then 'released'
    else 'lost'
  end;
end
$$;

-- Extends the lease if the lock is still held under this fence. Locks: the row, before the function reads the clock.
-- Explored in acquire.explore.test.ts.
create function {schema}.acquire_renew_lock(p_name text, p_permit integer, p_holder text, p_fence bigint, p_lease_ms bigint)
  returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_state text := {schema}.acquire_check_lock(p_name, p_permit, p_holder, p_fence);
  v_now timestamptz := {schema}.clock();
begin
  if v_state = 'held' then -- guard: acquire.lock-renew-lost
    -- point: before the renewal
    update {schema}.lock l set expires_at = v_now + p_lease_ms * interval '1 millisecond'
    where l.name = p_name and l.permit = p_permit;
  end if;
  return v_state;
end
$$;

-- Releases the lock if it is still held under this fence. The row stays, and its fence grows, so that nothing that
-- began under the old fence counts as held. Locks: the row. Explored in acquire.explore.test.ts.
create function {schema}.acquire_release_lock(p_name text, p_permit integer, p_holder text, p_fence bigint) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_state text := {schema}.acquire_check_lock(p_name, p_permit, p_holder, p_fence);
  v_now timestamptz := {schema}.clock();
begin
  if v_state = 'held' then -- guard: acquire.lock-release-lost
    -- point: before the release
    update {schema}.lock l set fence = {schema}.next_fence(l.fence, v_now), expires_at = '-infinity' -- guard: acquire.lock-release-fence
    where l.name = p_name and l.permit = p_permit;
  end if;
  return v_state;
end
$$;
