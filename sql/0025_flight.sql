-- compatible_from: 1
--
-- Single-flight: one caller loads a value for many. The right to load is the lock `flight:` and the key: its lease, its
-- fence and its marks of waiting callers are those of any other lock.

create table {schema}.flight (
  key text collate "C" primary key,
  -- The fence of the lock under which the value was loaded; 0: never loaded. It only grows, so a late loader cannot
  -- store an older value.
  fence bigint not null default 0,
  -- Null with a fence: the loader returned nothing.
  value json,
  load_ms bigint not null default 0,
  fresh_until timestamptz not null default '-infinity',
  stale_until timestamptz not null default '-infinity',
  -- The fence and the error of the last load that failed. Such a load does not change the value.
  failed_fence bigint not null default 0,
  failure json,
  failed_until timestamptz not null default '-infinity',
  -- Loads under this fence and lower ones began before the key was last forgotten. They are for the callers that waited
  -- then, and for nobody else.
  forgotten_fence bigint not null default 0,
  keep_until timestamptz not null,
  check (fresh_until <= stale_until),
  check ((failure is null) = (failed_fence = 0))
);

-- For maintenance.
create index flight_keep_until_idx on {schema}.flight (keep_until);

-- Returns the state of the row for a caller at this moment. `p_after`: the caller waits for a load under this fence or
-- a higher one.
--
--   fresh   any caller may have the value
--   ended   the load that the caller waits for has succeeded
--   failed  that load has failed, or a failure is kept
--   stale   the value may be used while another is loaded
--   absent  nothing
create function {schema}.flight_state(f {schema}.flight, p_after bigint, p_now timestamptz) returns text
  language sql stable
as $$
  select case
    when f.fence > f.forgotten_fence and f.fresh_until > p_now then 'fresh' -- guard: flight.floor
    when f.fence >= p_after then 'ended'
    when f.failed_fence >= p_after then 'failed'
    when f.fence > f.forgotten_fence and f.stale_until > p_now then 'stale'
    when f.failed_fence > f.forgotten_fence and f.failed_until > p_now then 'failed'
    else 'absent'
  end
$$;

-- Returns a state of flight_state as JSON, with the value or the failure.
create function {schema}.flight_result(p_state text, f {schema}.flight, p_lead json) returns json
  language sql stable
as $$
  select case p_state
    when 'failed' then pg_catalog.json_build_object('state', p_state, 'fence', f.failed_fence, 'failure', f.failure)
    when 'absent' then pg_catalog.json_build_object('state', 'lead', 'lead', p_lead)
    else pg_catalog.json_build_object(
      'state', p_state, 'fence', f.fence, 'isVoid', f.value is null, 'value', f.value, 'lead', p_lead)
  end
$$;

-- Returns the value, or the right to load it, in one call. A fresh value is a read of one row. A caller that gets a
-- stale value, or a fresh one shortly before its end (`p_early_factor`, times the duration of a load), also gets the
-- right to load if no other call has it. No caller waits for that.
--
-- Returns a state of flight_state, or:
--
--   lead   this caller must load
--   held   another call loads, and knows of the waiting caller; ask again with `after`
--   busy   the lock is being released or taken: ask again soon
--
-- Locks: the row of the lock. Two callers cannot both load: the right is one lock, and its new holder reads the row of
-- the key once more. A load that ended in between is visible then, because it is published in the transaction that
-- releases the lock. Explored in single-flight.explore.test.ts.
create function {schema}.flight_begin(
  p_key text, p_after bigint, p_holder text, p_lease_ms bigint, p_wanted_ms integer, p_early_factor double precision
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_seen {schema}.flight;
  v_flight {schema}.flight;
  v_now timestamptz;
  v_state text;
  v_lead json;
begin
  -- point: before the read
  select f.* into v_seen from {schema}.flight f where f.key = p_key;
  v_now := {schema}.clock();
  v_state := {schema}.flight_state(v_seen, p_after, v_now);
  if v_state in ('ended', 'failed')
    or v_state = 'fresh' and (p_early_factor = 0 or v_now + p_early_factor * v_seen.load_ms * interval '1 millisecond' < v_seen.fresh_until)
    -- A load that failed recently, and whose failure is kept, is not repeated so soon.
    or v_state in ('fresh', 'stale') and v_seen.failed_fence > v_seen.fence and v_seen.failed_until > v_now then
    return {schema}.flight_result(v_state, v_seen, null);
  end if;
  -- point: before the right to load
  v_lead := {schema}.lock_acquire('flight:' || p_key, 1, p_holder, p_lease_ms, case v_state when 'absent' then p_wanted_ms else 0 end);
  if v_lead ->> 'state' <> 'taken' then
    if v_state <> 'absent' then
      return {schema}.flight_result(v_state, v_seen, null);
    end if;
    -- A value that is published from now on was loading while this caller waited, unless it began before the key was
    -- forgotten.
    return pg_catalog.json_build_object(
      -- Without a lease, the lock had expired and its row was locked: the other call may be done by now, and did not
      -- know of this caller.
      'state', case when v_lead ->> 'state' = 'held' and v_lead ->> 'leftMs' is not null then 'held' else 'busy' end,
      'holder', v_lead ->> 'holder', 'leftMs', (v_lead ->> 'leftMs')::bigint,
      'leaseUntil', (v_lead ->> 'leaseUntil')::bigint,
      'after', greatest(v_seen.fence, v_seen.failed_fence, v_seen.forgotten_fence, 0) + 1); -- guard: flight.after
  end if;
  -- point: before the second read
  select f.* into v_flight from {schema}.flight f where f.key = p_key;
  v_now := {schema}.clock();
  v_state := {schema}.flight_state(v_flight, p_after, v_now);
  -- Another call has loaded it, or tried to, in between.
  if v_state in ('ended', 'failed') or v_state <> 'absent' and ( -- guard: flight.lead-recheck
      v_flight.fence is distinct from v_seen.fence or v_flight.failed_fence > v_flight.fence and v_flight.failed_until > v_now) then
    -- point: before the release of the lock
    update {schema}.lock l set expires_at = '-infinity'
    where l.name = 'flight:' || p_key and l.permit = 0 and l.fence = (v_lead ->> 'fence')::bigint;
    v_lead := null;
  end if;
  return {schema}.flight_result(v_state, v_flight, v_lead);
end
$$;

-- Publishes the result of a load and releases the lock, if it is still held under this fence, even if its lease has
-- expired and nobody has taken it.
--
-- Locks: the row of the lock, then the row of the key. A loader that lost the lock never gets to the second. A call
-- that forgets the key meanwhile has stored `forgotten_fence`, and this function waits for it there. Explored in
-- single-flight.explore.test.ts.
--
--   published  kept, or not, if it began before the key was forgotten (`isForgotten`); also by an earlier call, whose answer was lost
--   refused    another call has or had the lock; with the stored value, if it is newer and any caller may have it
create function {schema}.flight_publish(
  p_key text, p_holder text, p_fence bigint, p_value json, p_failure json, p_load_ms bigint,
  p_ttl_ms bigint, p_stale_ms bigint, p_keep_ms bigint, p_wait_ms integer
)
  returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_lock {schema}.lock;
  v_flight {schema}.flight;
  v_now timestamptz;
  v_fresh_until timestamptz;
begin
  -- The value need not be on the disk: if a crash loses it, it is loaded again when the lease has expired.
  perform pg_catalog.set_config('synchronous_commit', 'off', true);
  perform {schema}.limit_lock_wait({schema}.wait_below_statement_timeout(p_wait_ms));
  -- point: before the lock
  select l.* into v_lock from {schema}.lock l
  where l.name = 'flight:' || p_key and l.permit = 0 and l.fence = p_fence and l.expires_at > '-infinity' for no key update; -- guard: flight.publish-fence
  if not found then
    -- point: before the read
    select f.* into v_flight from {schema}.flight f where f.key = p_key;
    if p_fence in (v_flight.fence, v_flight.failed_fence) then
      -- point: before the read of the lock
      select l.* into v_lock from {schema}.lock l where l.name = 'flight:' || p_key and l.permit = 0;
      return pg_catalog.json_build_object(
        'state', 'published', 'isForgotten', v_flight.forgotten_fence >= p_fence, 'isWanted', coalesce(v_lock.wanted_until > {schema}.clock(), false));
    end if;
    return pg_catalog.json_build_object(
      'state', 'refused', 'isForgotten', coalesce(v_flight.forgotten_fence >= p_fence, false), 'isNewer', coalesce(v_flight.fence > greatest(p_fence, v_flight.forgotten_fence), false),
      'fence', v_flight.fence, 'isVoid', v_flight.value is null, 'value', v_flight.value);
  end if;
  v_now := {schema}.clock();
  v_fresh_until := v_now + p_ttl_ms * interval '1 millisecond';
  if p_failure is null then
    -- point: before the value
    insert into {schema}.flight as f (key, fence, value, load_ms, fresh_until, stale_until, keep_until)
    values (p_key, p_fence, p_value, p_load_ms, v_fresh_until, v_fresh_until + p_stale_ms * interval '1 millisecond',
      v_fresh_until + greatest(p_stale_ms, p_keep_ms) * interval '1 millisecond')
    on conflict (key) do update set
      fence = excluded.fence, value = excluded.value, load_ms = excluded.load_ms,
      fresh_until = excluded.fresh_until, stale_until = excluded.stale_until,
      keep_until = case when f.forgotten_fence < excluded.fence then excluded.keep_until else v_now + p_keep_ms * interval '1 millisecond' end
    where f.fence < excluded.fence
    returning f.* into v_flight;
  else
    -- point: before the failure
    insert into {schema}.flight as f (key, failed_fence, failure, failed_until, keep_until)
    values (p_key, p_fence, p_failure, v_fresh_until, v_fresh_until + p_keep_ms * interval '1 millisecond')
    on conflict (key) do update set
      failed_fence = excluded.failed_fence, failure = excluded.failure, failed_until = excluded.failed_until,
      keep_until = greatest(f.keep_until, excluded.keep_until)
    where f.failed_fence < excluded.failed_fence
    returning f.* into v_flight;
  end if;
  -- point: before the release of the lock
  update {schema}.lock l set expires_at = '-infinity' where l.name = 'flight:' || p_key and l.permit = 0 returning l.* into v_lock;
  return pg_catalog.json_build_object(
    'state', 'published', 'isForgotten', coalesce(v_flight.forgotten_fence >= p_fence, false), 'isWanted', v_lock.wanted_until > v_now);
end
$$;

-- Forgets a key: no later caller gets a value that was loaded before. A value that is loading now goes to the waiting
-- callers and is not kept.
--
-- Locks: the row of the key. The function neither waits for a load nor locks its lock: a load that begins after the
-- read of the lock is as good as any later one.
create function {schema}.flight_invalidate(p_key text, p_keep_ms bigint, p_wait_ms integer) returns text
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_fence bigint;
  v_now timestamptz;
begin
  perform {schema}.require_durable_commit();
  perform {schema}.limit_lock_wait({schema}.wait_below_statement_timeout(p_wait_ms));
  -- point: before the read of the lock
  select l.fence into v_fence from {schema}.lock l
  where l.name = 'flight:' || p_key and l.permit = 0 and l.expires_at > '-infinity';
  v_now := {schema}.clock();
  -- point: before the forgotten fence
  update {schema}.flight f set
    forgotten_fence = greatest(f.forgotten_fence, f.fence, f.failed_fence, v_fence), keep_until = v_now + p_keep_ms * interval '1 millisecond'
  where f.key = p_key;
  if not found and v_fence is not null then
    -- point: before the first forgotten fence
    insert into {schema}.flight as f (key, forgotten_fence, keep_until) values (p_key, v_fence, v_now + p_keep_ms * interval '1 millisecond')
    on conflict (key) do update set
      forgotten_fence = greatest(f.forgotten_fence, f.fence, f.failed_fence, excluded.forgotten_fence), keep_until = excluded.keep_until;
  end if;
  return 'forgotten';
end
$$;

-- Forgets the value that was loaded under this fence, because the caller could not parse it. A later value, or one that
-- is loading, is not touched, so any number of callers may reject the same value. Locks: the row of the key.
create function {schema}.flight_reject(p_key text, p_fence bigint, p_wait_ms integer) returns text
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
begin
  perform {schema}.limit_lock_wait({schema}.wait_below_statement_timeout(p_wait_ms));
  -- point: before the forgotten fence
  update {schema}.flight f set forgotten_fence = f.fence where f.key = p_key and f.fence = p_fence and f.forgotten_fence < f.fence;
  return 'rejected';
end
$$;

-- Deletes expired rows. A row stays while a caller has the lock or may still publish under it: its `forgotten_fence`
-- tells that load from a later one. Locks: those rows, skipping locked ones, so the function never waits. Explored in
-- single-flight.explore.test.ts.
create function {schema}.flight_delete_expired(p_limit integer) returns integer
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz := {schema}.clock();
  v_count integer;
begin
  -- point: before the removal
  delete from {schema}.flight f where f.ctid = any (array(
    select i.ctid from {schema}.flight i
    where i.keep_until <= v_now and not exists (
      select from {schema}.lock l where l.name = 'flight:' || i.key and l.permit = 0 and l.expires_at > '-infinity') -- guard: flight.maintenance-held
    order by i.keep_until limit p_limit for update of i skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
