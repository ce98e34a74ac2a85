-- compatible_from: 1
--
-- Locks in the hands of a process: one call takes one of several permits, whoever waits says so, one statement renews all, and
-- a transaction guards itself by the fence.

-- Until when somebody waits for it: whoever gives it back then sends a hint, and nobody else does. It is in no index, so that a mark is a
-- small write, and no part of a key, so that it does not wait for a guard.
alter table {schema}.lock add column wanted_until timestamptz not null default '-infinity';

-- Whose lease its holder found run out, for a call whose answer is lost and that asks again.
alter table {schema}.lock add column taken_from json;

-- A lease that a crash of the server takes away would be held by two: where the session does not wait for the disk, this does.
create function {schema}.lock_durably() returns void
  language plpgsql volatile
  set search_path = ''
as $$
begin
  if pg_catalog.current_setting('synchronous_commit') = 'off' then
    perform pg_catalog.set_config('synchronous_commit', 'on', true);
  end if;
end
$$;

create function {schema}.lock_taken(l {schema}.lock, p_now timestamptz) returns json
  language sql stable
as $$
  select pg_catalog.json_build_object(
    'state', 'taken', 'permit', l.permit, 'holder', l.holder, 'fence', l.fence, 'acquiredAt', {schema}.micros(l.acquired_at),
    'leftMs', floor(pg_catalog.date_part('epoch', l.expires_at - p_now) * 1000), 'from', l.taken_from)
$$;

-- Takes a permit that is free or whose lease has run out, and waits for nobody but those who are passing. Else says how it stands:
--
--   held     all have their leases; what is told is the one that ends first
--   guarded  one has run out, and a transaction that is guarded by it is still open
--   busy     one is just given back, taken or renewed
--
-- `p_wanted_ms`: the caller will wait. The permits that are held are marked so long, half of it at the least; `held` is then only said
-- if each of them is marked, so that whoever gives one back from now on knows that somebody waits.
create function {schema}.lock_acquire(p_name text, p_permits integer, p_holder text, p_ttl_ms bigint, p_wanted_ms integer)
  returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_now timestamptz;
  v_seen record;
  v_lock {schema}.lock;
  v_from json;
  v_state text := 'held';
  v_passed integer[] := '{}';
  v_is_marked boolean := p_wanted_ms = 0;
begin
  perform {schema}.lock_durably();
  -- The short way, for a lock of one holder that was given back, or that is held and, where the caller will wait, marked: half of what the long one costs.
  if p_permits = 1 then
    v_now := {schema}.clock();
    -- point: before the short way
    update {schema}.lock l set
      holder = p_holder, acquired_at = v_now, expires_at = v_now + p_ttl_ms * interval '1 millisecond',
      fence = {schema}.next_fence(l.fence, v_now), taken_from = null
    from (
      select i.ctid from {schema}.lock i
      where i.name = p_name and i.permit = 0 and i.expires_at = '-infinity' for update skip locked) i
    where l.ctid = i.ctid
    returning l.* into v_lock;
    if v_lock.name is not null then
      return {schema}.lock_taken(v_lock, v_now);
    end if;
    -- point: before the short look
    select l.* into v_lock from {schema}.lock l where l.name = p_name and l.permit = 0;
    if v_lock.expires_at > v_now and v_lock.holder <> p_holder
      and (p_wanted_ms = 0 or v_lock.wanted_until > v_now + p_wanted_ms / 2 * interval '1 millisecond') then
      return {schema}.lock_told('held', v_lock, v_now);
    end if;
  end if;
  for v_turn in 1..10 + p_permits loop
    v_now := {schema}.clock();
    -- point: before the look
    -- First what this very call has, whose answer was lost; then what is free, what has run out, and what will.
    select p.permit, l.fence, l.holder, l.expires_at, l.holder = p_holder as is_mine, l.expires_at > v_now as is_held
    into v_seen
    from pg_catalog.generate_series(0, p_permits - 1) p(permit)
    left join {schema}.lock l on l.name = p_name and l.permit = p.permit
    where p.permit <> all (v_passed)
    order by coalesce(l.holder = p_holder and l.expires_at > v_now, false) desc, coalesce(l.expires_at, '-infinity'), p.permit
    limit 1;
    if v_seen.is_mine and v_seen.is_held then
      -- point: before the second look
      -- It may have been taken away between the two, and be another's: only the one that was seen is this call's.
      select l.* into v_lock from {schema}.lock l
      where l.name = p_name and l.permit = v_seen.permit and l.fence = v_seen.fence and l.expires_at > v_now;
      continue when not found;
      return {schema}.lock_taken(v_lock, v_now);
    end if;
    -- All are held, or are passed over.
    if v_seen.permit is null or v_seen.is_held then
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
        perform {schema}.bound(10);
        -- point: before the insert
        insert into {schema}.lock as l (name, permit, holder, fence, expires_at, acquired_at)
        values (p_name, v_seen.permit, p_holder, {schema}.next_fence(0, v_now),
          v_now + p_ttl_ms * interval '1 millisecond', v_now)
        on conflict do nothing
        returning l.* into v_lock;
      exception when lock_not_available then
        v_state := 'busy';
        v_passed := v_passed || v_seen.permit;
        continue;
      end;
      continue when v_lock.name is null;
      return {schema}.lock_taken(v_lock, v_now);
    end if;
    if p_wanted_ms > 0 then
      -- Whoever has its row takes it or gives it back, and hints at the end if it is marked, which is looked at below. To queue here would be to have
      -- the row one after the other, each until the disk has it, and the holder behind them.
      -- point: before the lock of one who waits
      select l.* into v_lock from {schema}.lock l
      where l.name = p_name and l.permit = v_seen.permit for no key update skip locked;
      if not found then
        v_passed := v_passed || v_seen.permit;
        continue;
      end if;
    else
      begin
        perform {schema}.bound(10);
        -- point: before the lock
        select l.* into v_lock from {schema}.lock l
        where l.name = p_name and l.permit = v_seen.permit for no key update;
      exception when lock_not_available then
        v_state := 'busy';
        v_passed := v_passed || v_seen.permit;
        continue;
      end;
      -- What follows may wait for the end of the table's file, which others may be adding to.
      perform pg_catalog.set_config('lock_timeout', '0', true);
    end if;
    v_now := {schema}.clock();
    continue when v_lock.name is null or v_lock.expires_at > v_now;
    -- point: before the guards
    perform from {schema}.lock l where l.name = p_name and l.permit = v_seen.permit for update skip locked;
    if not found then
      v_state := 'guarded';
      v_passed := v_passed || v_seen.permit;
      continue;
    end if;
    v_from := case when v_lock.expires_at > '-infinity' then pg_catalog.json_build_object(
      'holder', v_lock.holder, 'fence', v_lock.fence, 'expiredAt', {schema}.micros(v_lock.expires_at)) end;
    -- point: before the takeover
    update {schema}.lock l set
      holder = p_holder, fence = {schema}.next_fence(l.fence, v_now), acquired_at = v_now,
      expires_at = v_now + p_ttl_ms * interval '1 millisecond', taken_from = v_from
    where l.name = p_name and l.permit = v_seen.permit
    returning l.* into v_lock;
    return {schema}.lock_taken(v_lock, v_now);
  end loop;
  if v_state = 'held' and p_wanted_ms > 0 then
    -- A mark that a crash takes away is made again at the next look: it need not wait for the disk, with the row in its hands.
    perform pg_catalog.set_config('synchronous_commit', 'off', true);
    -- point: before the check
    -- One that could not be marked is about to be given back, or renewed.
    perform from {schema}.lock l where l.name = p_name and l.permit < p_permits
      and l.wanted_until <= v_now + p_wanted_ms / 2 * interval '1 millisecond';
    if found then
      v_state := 'busy';
    end if;
  end if;
  return pg_catalog.json_build_object('state', v_state, 'holder', v_seen.holder,
    'leftMs', case when v_seen.is_held
      then greatest(1, ceil(pg_catalog.date_part('epoch', v_seen.expires_at - v_now) * 1000)) end);
end
$$;

-- Gives a permit back, if it is still held under this fence, and says whether somebody waits for it. The fence stays: so it waits for no transaction that is
-- guarded by it, not even for its caller's own. Whoever takes the lock next does.
create function {schema}.lock_give_back(p_name text, p_permit integer, p_holder text, p_fence bigint, p_wait_ms integer)
  returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_lock {schema}.lock;
begin
  -- It need not be on the disk: after a crash that takes it away the lock is held until its lease has run out, by nobody. Whoever takes it next waits for the
  -- disk, and with it for all that was before.
  perform pg_catalog.set_config('synchronous_commit', 'off', true);
  perform {schema}.bound({schema}.bounded_wait(p_wait_ms));
  -- point: before the release
  update {schema}.lock l set expires_at = '-infinity'
  where l.name = p_name and l.permit = p_permit and l.fence = p_fence and l.expires_at > '-infinity'
  returning l.* into v_lock;
  if v_lock.name is null then
    -- point: before the look
    select l.* into v_lock from {schema}.lock l where l.name = p_name and l.permit = p_permit;
    -- Else it was an earlier call, whose answer was lost.
    if v_lock.holder is distinct from p_holder or v_lock.expires_at > '-infinity' then
      return '{"state": "lost"}';
    end if;
  end if;
  return pg_catalog.json_build_object('state', 'released', 'isWanted', v_lock.wanted_until > {schema}.clock());
end
$$;

-- Puts off the end of all these leases: [{name, permit, fence, ttlMs}]. Answers for each, in their order: `held`; `lost`: another has it, it was given
-- back or taken away; `locked`: it was passed over since another has its row, and is to be asked for by itself. Never waits.
create function {schema}.lock_renew_all(p_locks json) returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_renewed bigint[];
  v_now timestamptz;
begin
  perform {schema}.lock_durably();
  -- point: before the locks
  select pg_catalog.array_agg(r.place) into v_renewed from (
    select m.place from {schema}.lock_items(p_locks) m
    join {schema}.lock l on l.name = m.name and l.permit = m.permit and l.fence = m.fence and l.expires_at > '-infinity'
    order by l.name, l.permit for no key update of l skip locked) r;
  v_now := {schema}.clock();
  -- point: before the renewal
  update {schema}.lock l set expires_at = v_now + m.ttl_ms * interval '1 millisecond'
  from {schema}.lock_items(p_locks) m
  where m.place = any (v_renewed) and l.name = m.name and l.permit = m.permit and l.fence = m.fence;
  -- point: before the others
  return (
    select pg_catalog.json_agg(case when m.place = any (v_renewed) then 'held' when l.name is null then 'lost' else 'locked' end
      order by m.place)
    from {schema}.lock_items(p_locks) m
    left join {schema}.lock l
      on l.name = m.name and l.permit = m.permit and l.fence = m.fence and l.expires_at > '-infinity');
end
$$;

create function {schema}.lock_items(p_locks json)
  returns table (place bigint, name text, permit integer, fence bigint, ttl_ms bigint)
  language sql stable
as $$
  select i.ordinality, i.value ->> 'name', (i.value ->> 'permit')::integer, (i.value ->> 'fence')::bigint, (i.value ->> 'ttlMs')::bigint
  from pg_catalog.json_array_elements(p_locks) with ordinality i
$$;

-- The same for one, which waits for whoever has its row: `locked` if that takes too long.
create function {schema}.lock_renew_one(p_name text, p_permit integer, p_fence bigint, p_ttl_ms bigint, p_wait_ms integer)
  returns text
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_now timestamptz;
begin
  perform {schema}.lock_durably();
  begin
    perform {schema}.bound({schema}.bounded_wait(p_wait_ms));
    -- point: before the lock
    perform from {schema}.lock l
    where l.name = p_name and l.permit = p_permit and l.fence = p_fence and l.expires_at > '-infinity' for no key update;
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

-- Ties the caller's transaction to a lock: nobody takes it, also if it was given back, before that transaction has ended. If it is another's by now, or its
-- lease has run out, the transaction fails here, so that it cannot commit whatever the caller does with the error. Without a fence it always does: its
-- holder knows.
--
-- A lock of the row's key: a renewal, which changes none, does not wait for it. A lease that has run out is refused also if nobody has taken it:
-- transactions that guard themselves one after the other would keep everybody else away for ever. Above READ COMMITTED the end of the lease is seen as it was when the
-- transaction began, before renewals since: there its holder's own clock decides, which it has asked before, and one that was given back or taken away before.
--
-- `p_is_again`: the transaction was guarded before, by a lock of the row that a savepoint may have taken with it. It goes on unless another has the lock by now,
-- which raises the fence: as if that savepoint had not been.
create function {schema}.lock_guard(
  p_name text, p_permit integer, p_fence bigint, p_idle_ms bigint, p_wait_ms integer, p_is_again boolean
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
  perform {schema}.bound({schema}.bounded_wait(p_wait_ms));
  -- point: before the lock
  select l.* into v_lock from {schema}.lock l
  where l.name = p_name and l.permit = p_permit and l.fence = p_fence for key share;
  v_now := {schema}.clock();
  if v_lock.name is null or not p_is_again and v_lock.expires_at <= (case when v_is_old then '-infinity' else v_now end) then
    -- What such a transaction sees may be older than the lock: a new one may well be let through.
    if v_is_old then
      raise exception 'this transaction began before what the lock is now' using errcode = 'serialization_failure';
    end if;
    raise exception 'the lock is %', case when v_lock.name is null then 'lost' else 'expired' end using errcode = 'DIB03';
  end if;
  -- A process that stands still in here would keep everybody else away: the server ends it then. One that has a lower limit keeps it.
  v_idle_ms := pg_catalog.date_part('epoch', pg_catalog.current_setting('idle_in_transaction_session_timeout')::interval) * 1000;
  if p_idle_ms is not null and (v_idle_ms = 0 or v_idle_ms > p_idle_ms) then
    perform pg_catalog.set_config('idle_in_transaction_session_timeout', p_idle_ms || 'ms', true);
  end if;
  return 'guarded';
end
$$;

-- Takes a lock away from whoever holds it: all its permits, or the one with this fence. From then on nobody can renew it, or guard a transaction by it that begins
-- later; those that are guarded go on, and whoever takes the lock next waits for these. So this waits for none of them.
create function {schema}.lock_force(p_name text, p_fence bigint, p_wait_ms integer) returns json
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
  perform {schema}.bound({schema}.bounded_wait(p_wait_ms));
  -- point: before the locks
  for v_lock in
    select l.* from {schema}.lock l
    where l.name = p_name and l.fence = coalesce(p_fence, l.fence) order by l.permit for no key update
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
      fence = case when v_is_guarded then l.fence else {schema}.next_fence(l.fence, v_now) end
    where l.name = p_name and l.permit = v_lock.permit;
  end loop;
  return pg_catalog.json_build_object('isWanted', v_is_wanted, 'taken', pg_catalog.to_json(v_taken));
end
$$;
