-- compatible_from: 1
--
-- Calls on a held lock: renew, release, guard a transaction, force a release.

-- Releases a permit if it is still held under this fence, and returns whether another caller waits for it.
--
-- The fence stays the same, so the release does not wait for a transaction that is guarded by it, not even for its
-- caller's own. The next caller that takes the lock waits for that transaction.
--
-- Locks: the row of the permit. A late release changes nothing, because a takeover has raised the fence. Explored in
-- lock.explore.test.ts.
create function {schema}.lock_release(p_name text, p_permit integer, p_holder text, p_fence bigint, p_wait_ms integer)
  returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_lock {schema}.lock;
begin
  -- The release need not be on the disk: if a crash loses it, the lock stays held until its lease expires. The next
  -- caller that takes it waits for the disk, and so for all earlier commits.
  perform pg_catalog.set_config('synchronous_commit', 'off', true);
  perform {schema}.limit_lock_wait({schema}.wait_below_statement_timeout(p_wait_ms)); -- guard: lock.release-bound
  -- point: before the release
  update {schema}.lock l set expires_at = '-infinity'
  where l.name = p_name and l.permit = p_permit and l.fence = p_fence and l.expires_at > '-infinity' -- guard: lock.release-fence
  returning l.* into v_lock;
  if v_lock.name is null then
    -- point: before the read
    select l.* into v_lock from {schema}.lock l where l.name = p_name and l.permit = p_permit;
    -- A free permit of this holder: an earlier call has released it, and its answer was lost.
    if v_lock.holder is distinct from p_holder or v_lock.expires_at > '-infinity' then
      return '{"state": "lost"}';
    end if;
  end if;
  return pg_catalog.json_build_object('state', 'released', 'isWanted', v_lock.wanted_until > {schema}.clock());
end
$$;

-- Extends all these leases: [{name, permit, fence, ttlMs}]. Returns for each, in their order: `held`; `lost`: another
-- call has it, or it was released or taken away; `locked`: another transaction has its row, and the caller renews it
-- alone.
--
-- Locks: the rows in the order of their keys, skipping locked ones, so the function never waits. A late renewal changes
-- nothing, because a takeover has raised the fence. Explored in lock.explore.test.ts.
create function {schema}.lock_renew_many(p_locks json) returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_renewed bigint[];
  v_now timestamptz;
begin
  perform {schema}.require_durable_commit();
  -- point: before the locks
  select pg_catalog.array_agg(r.place) into v_renewed from (
    select m.place from {schema}.lock_renewals(p_locks) m
    join {schema}.lock l on l.name = m.name and l.permit = m.permit and l.fence = m.fence and l.expires_at > '-infinity' -- guard: lock.renew-all-fence
    order by l.name, l.permit for no key update of l skip locked) r; -- guard: lock.renew-all-skip-locked
  v_now := {schema}.clock();
  -- point: before the renewal
  update {schema}.lock l set expires_at = v_now + m.ttl_ms * interval '1 millisecond'
  from {schema}.lock_renewals(p_locks) m
  where m.place = any (v_renewed) and l.name = m.name and l.permit = m.permit and l.fence = m.fence;
  -- point: before the remaining rows
  return (
    select pg_catalog.json_agg(case when m.place = any (v_renewed) then 'held' when l.name is null then 'lost' else 'locked' end -- guard: lock.renew-all-locked
      order by m.place)
    from {schema}.lock_renewals(p_locks) m
    left join {schema}.lock l
      on l.name = m.name and l.permit = m.permit and l.fence = m.fence and l.expires_at > '-infinity');
end
$$;

-- Reads the argument of lock_renew_many as rows, each with its position.
create function {schema}.lock_renewals(p_locks json)
  returns table (place bigint, name text, permit integer, fence bigint, ttl_ms bigint)
  language sql stable
as $$
  select i.ordinality, i.value ->> 'name', (i.value ->> 'permit')::integer, (i.value ->> 'fence')::bigint, (i.value ->> 'ttlMs')::bigint
  from pg_catalog.json_array_elements(p_locks) with ordinality i
$$;

-- Extends one lease. The function waits for the transaction that has locked the row, and returns `locked` if that takes
-- too long. Locks: the row of the permit, before the function reads the clock. Explored in lock.explore.test.ts.
create function {schema}.lock_renew_one(p_name text, p_permit integer, p_fence bigint, p_ttl_ms bigint, p_wait_ms integer)
  returns text
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_now timestamptz;
begin
  perform {schema}.require_durable_commit();
  begin
    perform {schema}.limit_lock_wait({schema}.wait_below_statement_timeout(p_wait_ms)); -- guard: lock.renew-one-bound
    -- point: before the lock
    perform from {schema}.lock l
    where l.name = p_name and l.permit = p_permit and l.fence = p_fence and l.expires_at > '-infinity' for no key update; -- guard: lock.renew-one-fence
  exception when lock_not_available then
    return 'locked';
  end;
  if not found then
    return 'lost';
  end if;
  v_now := {schema}.clock();
  -- point: before the renewal
  update {schema}.lock l set expires_at = v_now + p_ttl_ms * interval '1 millisecond'
  where l.name = p_name and l.permit = p_permit and l.fence = p_fence;
  return 'held';
end
$$;

-- Ties the caller's transaction to a lock: no other call takes the lock before that transaction ends, even after a
-- release. If another call has the lock by now, or its lease has expired, the function raises an error, so that the
-- transaction cannot commit whatever the caller does with the error.
--
-- Locks: the row's key (`for key share`). A renewal does not change the key and does not wait. A takeover changes the
-- key, so it cannot happen beside a guarded transaction. An expired lease is refused even if nobody has taken the lock:
-- otherwise a series of guarded transactions could keep all other callers away forever. Above READ COMMITTED the
-- function sees the row as it was when the transaction began, before later renewals. There the holder's own clock
-- decides, which the caller has checked before, and '-infinity' shows a release. Explored in
-- lock-guard.explore.test.ts.
--
-- `p_is_repeat`: the transaction was guarded before, but a rollback to a savepoint may have released that row lock. The
-- guard succeeds unless another call has taken the lock, which raises the fence.
create function {schema}.lock_guard(
  p_name text, p_permit integer, p_fence bigint, p_idle_ms bigint, p_wait_ms integer, p_is_repeat boolean
)
  returns text
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_lock {schema}.lock;
  v_now timestamptz;
  v_idle_ms bigint;
  v_is_old boolean := pg_catalog.current_setting('transaction_isolation') <> 'read committed';
begin
  perform {schema}.limit_lock_wait({schema}.wait_below_statement_timeout(p_wait_ms)); -- guard: lock.guard-bound
  -- point: before the lock
  select l.* into v_lock from {schema}.lock l
  where l.name = p_name and l.permit = p_permit and l.fence = p_fence for key share; -- guard: lock.guard-lock, lock.guard-key-share, lock.guard-fence
  v_now := {schema}.clock(); -- guard: lock.guard-clock
  if v_lock.name is null or not p_is_repeat and v_lock.expires_at <= (case when v_is_old then '-infinity' else v_now end) then -- guard: lock.guard-expired
    -- The snapshot may be older than the lock, so a new transaction may succeed.
    if v_is_old then
      raise exception 'the snapshot of this transaction is older than the state of the lock: retry in a new transaction' using errcode = 'serialization_failure';
    end if;
    raise exception 'the lock is %', case when v_lock.name is null then 'lost' else 'expired' end using errcode = 'DIB03';
  end if;
  -- A process that is paused inside the transaction would keep all other callers away, so the server ends the
  -- transaction. A lower limit of the caller stays.
  v_idle_ms := pg_catalog.date_part('epoch', pg_catalog.current_setting('idle_in_transaction_session_timeout')::interval) * 1000;
  if p_idle_ms is not null and (v_idle_ms = 0 or v_idle_ms > p_idle_ms) then -- guard: lock.guard-idle-timeout
    perform pg_catalog.set_config('idle_in_transaction_session_timeout', p_idle_ms || 'ms', true);
  end if;
  return 'guarded';
end
$$;

-- Takes a lock away from its holders: all its permits, or the one with this fence. From then on no holder can renew it,
-- or guard a new transaction by it. Guarded transactions continue. The next caller that takes the lock waits for them,
-- but this function does not.
--
-- Locks: the rows of the permits, in their order. Explored in lock.explore.test.ts.
create function {schema}.lock_force_release(p_name text, p_fence bigint, p_wait_ms integer) returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_lock {schema}.lock;
  v_now timestamptz;
  v_taken json[] := '{}';
  v_is_wanted boolean := false;
  v_is_guarded boolean;
begin
  perform {schema}.limit_lock_wait({schema}.wait_below_statement_timeout(p_wait_ms));
  -- point: before the locks
  for v_lock in
    select l.* from {schema}.lock l
    where l.name = p_name and l.fence = coalesce(p_fence, l.fence) order by l.permit for no key update -- guard: lock.force-fence
  loop
    v_now := {schema}.clock();
    continue when v_lock.expires_at <= v_now;
    v_taken := v_taken || pg_catalog.json_build_object('permit', v_lock.permit, 'holder', v_lock.holder, 'fence', v_lock.fence);
    v_is_wanted := v_is_wanted or v_lock.wanted_until > v_now;
    -- point: before the guards
    perform from {schema}.lock l where l.name = p_name and l.permit = v_lock.permit for update skip locked;
    v_is_guarded := not found;
    -- point: before the release
    update {schema}.lock l set holder = 'taken from ' || l.holder, expires_at = '-infinity',
      fence = case when v_is_guarded then l.fence else {schema}.next_fence(l.fence, v_now) end -- guard: lock.force-raise-fence
    where l.name = p_name and l.permit = v_lock.permit;
  end loop;
  return pg_catalog.json_build_object('isWanted', v_is_wanted, 'taken', pg_catalog.to_json(v_taken));
end
$$;
