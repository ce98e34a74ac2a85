-- compatible_from: 1
--
-- Locks. A permit of a name has one holder at a time, until its lease expires. The row outlives the holder: its fence
-- only grows.

create table {schema}.lock (
  name text collate "C" not null,
  permit integer not null default 0,
  -- The unique name of one call. The name stays after the release, so that a release whose answer was lost can be repeated.
  holder text not null,
  fence bigint not null,
  -- '-infinity': the permit is free, or an open transaction holds it, whose row lock shows that.
  expires_at timestamptz not null,
  acquired_at timestamptz not null,
  -- A caller waits for the lock until this time. Only then does a release send a notification. The column is in no index,
  -- so that a mark is a small write, and no part of a key, so that a mark does not wait for a guard.
  wanted_until timestamptz not null default '-infinity',
  -- The holder whose lease had expired at the takeover. A repeated call, whose first answer was lost, reads it.
  taken_from json,
  primary key (name, permit), -- guard: lock.unique
  -- The fence is part of a key. So a takeover waits for a transaction that guards itself by a lock of the row (`for key
  -- share`), and a renewal does not.
  unique (name, permit, fence) -- guard: lock.fence-key
);

-- For maintenance. A renewal does not change it.
create index lock_acquired_at_idx on {schema}.lock (acquired_at);

-- Returns a lock as JSON, with the time that is left of its lease.
create function {schema}.lock_result(p_state text, l {schema}.lock, p_now timestamptz) returns json
  language sql stable
as $$
  select pg_catalog.json_build_object(
    'state', p_state, 'holder', l.holder, 'fence', l.fence, 'acquiredAt', {schema}.micros(l.acquired_at),
    'leftMs', case when l.expires_at > p_now
      then greatest(1, ceil(pg_catalog.date_part('epoch', l.expires_at - p_now) * 1000)) end,
    'leaseUntil', case when l.expires_at > p_now then {schema}.micros(l.expires_at) end)
$$;

-- Returns a permit that this call has taken as JSON, with its previous holder.
create function {schema}.lock_acquired_result(l {schema}.lock, p_now timestamptz) returns json
  language sql stable
as $$
  select pg_catalog.json_build_object(
    'state', 'taken', 'permit', l.permit, 'holder', l.holder, 'fence', l.fence, 'acquiredAt', {schema}.micros(l.acquired_at),
    'leftMs', floor(pg_catalog.date_part('epoch', l.expires_at - p_now) * 1000), 'from', l.taken_from)
$$;

-- Makes the current transaction wait for the disk at COMMIT, also where the session does not. If a server crash lost a
-- committed lease, two callers would hold the lock.
create function {schema}.require_durable_commit() returns void
  language plpgsql volatile
  set search_path = ''
as $$
begin
  if pg_catalog.current_setting('synchronous_commit') = 'off' then
    perform pg_catalog.set_config('synchronous_commit', 'on', true);
  end if;
end
$$;

-- Deletes locks that nobody has held for a day. A new row of the same name gets a higher fence, because fences are
-- never behind the clock. Locks: those rows, skipping locked ones, so the function never waits.
create function {schema}.lock_delete_idle(p_limit integer) returns integer
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
    where i.expires_at <= v_now - interval '1 day' and i.acquired_at <= v_now - interval '1 day' -- guard: lock.forget-held
    order by i.acquired_at limit p_limit for update skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
