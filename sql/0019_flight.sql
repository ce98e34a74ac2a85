-- compatible_from: 1
--
-- Single-flight: what one of many callers has loaded, for all of them. Whoever loads has the lead, which is the lock `flight:` and the key: its lease, its
-- fence and its marks of who waits are those of any other lock.

create table {schema}.flight (
  key text collate "C" primary key,
  -- Of the lead under which the value was loaded; 0: none was. It only grows, so a leader that wakes up late cannot put an older value in its place.
  fence bigint not null default 0,
  -- Null with a fence: nothing was returned.
  value json,
  load_ms bigint not null default 0,
  fresh_until timestamptz not null default '-infinity',
  stale_until timestamptz not null default '-infinity',
  -- The same for the last load that failed. It leaves the value alone.
  failed_fence bigint not null default 0,
  failure json,
  failed_until timestamptz not null default '-infinity',
  -- Loads under this fence, and lower ones, began before the key was last forgotten: they are for those who waited then, and for nobody else.
  floor bigint not null default 0,
  keep_until timestamptz not null,
  check (fresh_until <= stale_until),
  check ((failure is null) = (failed_fence = 0))
);

-- For maintenance.
create index flight_keep_until_idx on {schema}.flight (keep_until);

-- What is there for a caller at this moment. `p_after`: it waits, and takes what was loaded under this fence or a higher one.
--
--   fresh   the value may be had by anybody
--   ended   the load that the caller waits for has ended well
--   failed  that, or one whose failure is kept, has failed
--   stale   the value may be had while another is loaded
--   absent  nothing
create function {schema}.flight_state(f {schema}.flight, p_after bigint, p_now timestamptz) returns text
  language sql stable
as $$
  select case
    when f.fence > f.floor and f.fresh_until > p_now then 'fresh'
    when f.fence >= p_after then 'ended'
    when f.failed_fence >= p_after then 'failed'
    when f.fence > f.floor and f.stale_until > p_now then 'stale'
    when f.failed_fence > f.floor and f.failed_until > p_now then 'failed'
    else 'absent'
  end
$$;

create function {schema}.flight_told(p_state text, f {schema}.flight, p_lead json) returns json
  language sql stable
as $$
  select case p_state
    when 'failed' then pg_catalog.json_build_object('state', p_state, 'fence', f.failed_fence, 'failure', f.failure)
    when 'absent' then pg_catalog.json_build_object('state', 'lead', 'lead', p_lead)
    else pg_catalog.json_build_object(
      'state', p_state, 'fence', f.fence, 'isVoid', f.value is null, 'value', f.value, 'lead', p_lead)
  end
$$;

-- What is there, or the lead to load it, in one call. What is fresh is a read of one row, and nothing else. Whoever gets a stale value, or a fresh one shortly before its end
-- (`p_early`: how many times as long as a load takes), and finds the lead free, gets it as well, and nobody waits for that.
--
-- Answers a state of flight_state, or
--
--   lead   it is to be loaded by this caller
--   held   another loads it, and knows that somebody waits; to be asked for again with `after`
--   busy   the lead is just given back or taken: the same, soon
--
-- Two callers cannot both load: the lead is one lock, and whoever takes it looks once more. A load that has ended between the look and the lock is seen then, since it is
-- published before its lead is given back, in one transaction. See src/locks/single-flight.explore.test.ts.
create function {schema}.flight_begin(
  p_key text, p_after bigint, p_holder text, p_lease_ms bigint, p_wanted_ms integer, p_early double precision
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
  -- point: before the look
  select f.* into v_seen from {schema}.flight f where f.key = p_key;
  v_now := {schema}.clock();
  v_state := {schema}.flight_state(v_seen, p_after, v_now);
  if v_state in ('ended', 'failed')
    or v_state = 'fresh' and (p_early = 0 or v_now + p_early * v_seen.load_ms * interval '1 millisecond' < v_seen.fresh_until)
    -- A load that failed of late, and whose failure is kept, is not tried again so soon.
    or v_state in ('fresh', 'stale') and v_seen.failed_fence > v_seen.fence and v_seen.failed_until > v_now then
    return {schema}.flight_told(v_state, v_seen, null);
  end if;
  -- point: before the lead
  v_lead := {schema}.lock_acquire('flight:' || p_key, 1, p_holder, p_lease_ms, case v_state when 'absent' then p_wanted_ms else 0 end);
  if v_lead ->> 'state' <> 'taken' then
    if v_state <> 'absent' then
      return {schema}.flight_told(v_state, v_seen, null);
    end if;
    -- What is published from now on was in the air while this caller waited, unless it began before the key was forgotten.
    return pg_catalog.json_build_object(
      -- Without a lease it is one that has run out, and whose row somebody had: that one may be done by now, and did not know that somebody waits.
      'state', case when v_lead ->> 'state' = 'held' and v_lead ->> 'leftMs' is not null then 'held' else 'busy' end,
      'holder', v_lead ->> 'holder', 'leftMs', (v_lead ->> 'leftMs')::bigint,
      'leaseUntil', (v_lead ->> 'leaseUntil')::bigint,
      'after', greatest(v_seen.fence, v_seen.failed_fence, v_seen.floor, 0) + 1);
  end if;
  -- point: before the second look
  select f.* into v_flight from {schema}.flight f where f.key = p_key;
  v_now := {schema}.clock();
  v_state := {schema}.flight_state(v_flight, p_after, v_now);
  -- Another has loaded it, or tried to, between the two.
  if v_state in ('ended', 'failed') or v_state <> 'absent' and (
      v_flight.fence is distinct from v_seen.fence or v_flight.failed_fence > v_flight.fence and v_flight.failed_until > v_now) then
    -- point: before the lead is given back
    update {schema}.lock l set expires_at = '-infinity'
    where l.name = 'flight:' || p_key and l.permit = 0 and l.fence = (v_lead ->> 'fence')::bigint;
    v_lead := null;
  end if;
  return {schema}.flight_told(v_state, v_flight, v_lead);
end
$$;

-- Publishes what came of a load, and gives the lead back, if it is still held under this fence; also if its lease has run out and nobody else has taken it. Locks the lead
-- first and then the row, which a leader that has lost the lead never comes to. Whoever has forgotten the key meanwhile has left its floor in the row, and is waited for there.
--
--   published  kept, or not, if it began before the key was forgotten (`isForgotten`); also by an earlier call, whose answer was lost
--   refused    another has, or has had, the lead; and the value that is there, if it is newer and may be had by anybody
create function {schema}.flight_finish(
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
  -- It need not be on the disk: after a crash that takes it away it is loaded again, when the lease has run out.
  perform pg_catalog.set_config('synchronous_commit', 'off', true);
  perform {schema}.bound({schema}.bounded_wait(p_wait_ms));
  -- point: before the lead
  select l.* into v_lock from {schema}.lock l
  where l.name = 'flight:' || p_key and l.permit = 0 and l.fence = p_fence and l.expires_at > '-infinity' for no key update;
  if not found then
    -- point: before the look
    select f.* into v_flight from {schema}.flight f where f.key = p_key;
    if p_fence in (v_flight.fence, v_flight.failed_fence) then
      -- point: before the look at who waits
      select l.* into v_lock from {schema}.lock l where l.name = 'flight:' || p_key and l.permit = 0;
      return pg_catalog.json_build_object(
        'state', 'published', 'isForgotten', v_flight.floor >= p_fence, 'isWanted', coalesce(v_lock.wanted_until > {schema}.clock(), false));
    end if;
    return pg_catalog.json_build_object(
      'state', 'refused', 'isForgotten', coalesce(v_flight.floor >= p_fence, false), 'isNewer', coalesce(v_flight.fence > greatest(p_fence, v_flight.floor), false),
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
      keep_until = case when f.floor < excluded.fence then excluded.keep_until else v_now + p_keep_ms * interval '1 millisecond' end
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
  -- point: before the lead is given back
  update {schema}.lock l set expires_at = '-infinity' where l.name = 'flight:' || p_key and l.permit = 0 returning l.* into v_lock;
  return pg_catalog.json_build_object(
    'state', 'published', 'isForgotten', coalesce(v_flight.floor >= p_fence, false), 'isWanted', v_lock.wanted_until > v_now);
end
$$;

-- From now on nobody is given what was loaded before, and what is being loaded goes to those who wait for it and is not kept. It waits for nobody's load, and takes no lock of the
-- lead: a lead that is taken after the look begins to load after it, and its value is as good as any that comes later.
create function {schema}.flight_drop(p_key text, p_keep_ms bigint, p_wait_ms integer) returns text
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_fence bigint;
  v_now timestamptz;
begin
  perform {schema}.lock_durably();
  perform {schema}.bound({schema}.bounded_wait(p_wait_ms));
  -- point: before the look at the lead
  select l.fence into v_fence from {schema}.lock l
  where l.name = 'flight:' || p_key and l.permit = 0 and l.expires_at > '-infinity';
  v_now := {schema}.clock();
  -- point: before the floor
  update {schema}.flight f set
    floor = greatest(f.floor, f.fence, f.failed_fence, v_fence), keep_until = v_now + p_keep_ms * interval '1 millisecond'
  where f.key = p_key;
  if not found and v_fence is not null then
    -- point: before the first floor
    insert into {schema}.flight as f (key, floor, keep_until) values (p_key, v_fence, v_now + p_keep_ms * interval '1 millisecond')
    on conflict (key) do update set
      floor = greatest(f.floor, f.fence, f.failed_fence, excluded.floor), keep_until = excluded.keep_until;
  end if;
  return 'forgotten';
end
$$;

-- What was loaded under this fence is given to nobody any more but those who waited for it: whoever found it cannot read it. What was loaded since, or is being loaded, is not
-- touched, so any number of callers may find the same.
create function {schema}.flight_reject(p_key text, p_fence bigint, p_wait_ms integer) returns text
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
begin
  perform {schema}.bound({schema}.bounded_wait(p_wait_ms));
  -- point: before the floor
  update {schema}.flight f set floor = f.fence where f.key = p_key and f.fence = p_fence and f.floor < f.fence;
  return 'rejected';
end
$$;

-- Removes what is over. Never waits. A row stays while somebody has the lead, or may still publish under it: its floor is what tells that load from a later one.
create function {schema}.flight_forget(p_limit integer) returns integer
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
      select from {schema}.lock l where l.name = 'flight:' || i.key and l.permit = 0 and l.expires_at > '-infinity')
    order by i.keep_until limit p_limit for update of i skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
