-- compatible_from: 1
--
-- A name that one holder has at a time, until its lease runs out. The row outlives the holder: its fence only grows.

create table {schema}.lock (
  name text collate "C" not null,
  permit integer not null default 0,
  -- One call, by a name that no other has; it stays after the release, so that a release whose answer was lost can be repeated.
  holder text not null,
  fence bigint not null,
  -- '-infinity': nobody has it, or a transaction that is still open, whose row lock says so.
  expires_at timestamptz not null,
  acquired_at timestamptz not null,
  primary key (name, permit),
  -- Makes the fence a part of a key: whoever takes it waits for a transaction that guards itself by a lock of the row
  -- (`for key share`), and a renewal does not.
  unique (name, permit, fence)
);

-- For maintenance. A renewal does not change it.
create index lock_acquired_at_idx on {schema}.lock (acquired_at);

-- Takes a lock that is free or whose lease has run out. Never waits: one that another holds, takes or guards is refused.
--
-- Without `p_lease_ms` it belongs to the transaction: others find its row locked until the end, and a free lock then.
create function {schema}.lock_take(p_name text, p_permit integer, p_holder text, p_lease_ms bigint) returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_lock {schema}.lock;
  v_now timestamptz;
  v_holder text := coalesce(p_holder, 'tx:' || pg_catalog.pg_current_xact_id()::text);
begin
  for v_turn in 1..10 loop
    -- point: before the look
    select l.* into v_lock from {schema}.lock l where l.name = p_name and l.permit = p_permit;
    if not found then
      v_now := {schema}.clock();
      begin
        perform {schema}.bound(10);
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
        return {schema}.lock_told('taken', v_lock, v_now);
      end if;
      continue;
    end if;
    v_now := {schema}.clock();
    if v_lock.expires_at > v_now then
      if v_lock.holder = v_holder then
        -- By this very call, whose answer was lost.
        return {schema}.lock_told('taken', v_lock, v_now);
      end if;
      return {schema}.lock_told('held', v_lock, v_now);
    end if;
    -- point: before the lock
    select l.* into v_lock from {schema}.lock l where l.name = p_name and l.permit = p_permit for update skip locked;
    if not found then
      return '{"state": "busy"}';
    end if;
    v_now := {schema}.clock();
    continue when v_lock.expires_at > v_now;
    -- point: before the takeover
    update {schema}.lock l set
      holder = v_holder, fence = {schema}.next_fence(l.fence, v_now), acquired_at = v_now,
      expires_at = coalesce(v_now + p_lease_ms * interval '1 millisecond', '-infinity')
    where l.name = p_name and l.permit = p_permit
    returning l.* into v_lock;
    return {schema}.lock_told('taken', v_lock, v_now);
  end loop;
  return '{"state": "busy"}';
end
$$;

-- Whether a lock could be had, in the words of acquire_one.
create function {schema}.lock_look(p_name text, p_permit integer) returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_lock {schema}.lock;
  v_now timestamptz;
begin
  -- point: before the look
  select l.* into v_lock from {schema}.lock l where l.name = p_name and l.permit = p_permit;
  v_now := {schema}.clock();
  return pg_catalog.json_build_object(
    'granted', coalesce(v_lock.expires_at <= v_now, true), 'isBusy', false, 'isFinal', false, 'state', 'held',
    'lock', {schema}.lock_told('held', v_lock, v_now));
end
$$;

create function {schema}.lock_told(p_state text, l {schema}.lock, p_now timestamptz) returns json
  language sql stable
as $$
  select pg_catalog.json_build_object(
    'state', p_state, 'holder', l.holder, 'fence', l.fence, 'acquiredAt', {schema}.micros(l.acquired_at),
    'leftMs', case when l.expires_at > p_now
      then greatest(1, ceil(pg_catalog.date_part('epoch', l.expires_at - p_now) * 1000)) end,
    'leaseUntil', case when l.expires_at > p_now then {schema}.micros(l.expires_at) end)
$$;

-- Locks the row, if it has this fence. `released`: by an earlier call of this holder, whose answer was lost.
create function {schema}.lock_state(p_name text, p_permit integer, p_holder text, p_fence bigint) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_lock {schema}.lock;
begin
  -- point: before the lock
  select l.* into v_lock from {schema}.lock l where l.name = p_name and l.permit = p_permit for no key update;
  return case
    when v_lock.fence = p_fence then 'held'
    when v_lock.holder = p_holder and v_lock.expires_at = '-infinity' then 'released'
    else 'lost'
  end;
end
$$;

-- Puts off the end of the lease, if the lock is still held under this fence.
create function {schema}.lock_renew(p_name text, p_permit integer, p_holder text, p_fence bigint, p_lease_ms bigint)
  returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_state text := {schema}.lock_state(p_name, p_permit, p_holder, p_fence);
  v_now timestamptz := {schema}.clock();
begin
  if v_state = 'held' then
    -- point: before the renewal
    update {schema}.lock l set expires_at = v_now + p_lease_ms * interval '1 millisecond'
    where l.name = p_name and l.permit = p_permit;
  end if;
  return v_state;
end
$$;

-- Gives the lock back, if it is still held under this fence. The row stays, and its fence grows: nothing that was begun under the old
-- one can be taken for held.
create function {schema}.lock_release(p_name text, p_permit integer, p_holder text, p_fence bigint) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_state text := {schema}.lock_state(p_name, p_permit, p_holder, p_fence);
  v_now timestamptz := {schema}.clock();
begin
  if v_state = 'held' then
    -- point: before the release
    update {schema}.lock l set fence = {schema}.next_fence(l.fence, v_now), expires_at = '-infinity'
    where l.name = p_name and l.permit = p_permit;
  end if;
  return v_state;
end
$$;

-- Removes locks that nobody has had for a day. Never waits. A fence that is made anew is above the old one, since it is not behind
-- the clock.
create function {schema}.lock_forget(p_limit integer) returns integer
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz := {schema}.clock();
  v_count integer;
begin
  -- point: before the removal
  delete from {schema}.lock l where l.ctid = any (array(
    select i.ctid from {schema}.lock i
    where i.expires_at <= v_now - interval '1 day' and i.acquired_at <= v_now - interval '1 day'
    order by i.acquired_at limit p_limit for update skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
