-- compatible_from: 1
--
-- Claiming. A claim locks what it picks and skips what others have, so it waits for nobody; a row that is locked is ready, and stays so until the claim commits, so no two
-- can both have it. See src/jobs/claim.explore.test.ts.
--
-- Whoever claims holds a shared advisory lock until its claim is committed, and whoever pauses a queue takes it alone: when that is committed, no claim of the queue is under way, and
-- those that come later see the pause, since they look in a statement that begins after they have the lock.

create function {schema}.job_claims_key() returns bigint
  language sql immutable
as $$ select pg_catalog.hashtextextended('{schema}:job_claim', 0) $$;

-- The lanes of queues that are paused.
create function {schema}.job_paused() returns integer[]
  language sql stable
as $$
  select coalesce(pg_catalog.array_agg(l.id), '{}') from {schema}.queue q join {schema}.lane l on l.queue = q.name where q.paused_at is not null
$$;

-- The rest of a claim: these rows, which the caller has locked, are run by this worker from now on. What has expired is moved into history. Told by column: of 500 jobs on two
-- cores 1.5 ms, against 2.3 and 3.0 ms with an array in JSON for each and 3.0 ms as rows, what the client does included.
create function {schema}.job_take(p_rows tid[], p_worker text, p_lanes integer[], p_lease_ms bigint[]) returns json
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
declare
  v_now timestamptz := {schema}.clock();
  v_told json;
  v_count bigint;
begin
  -- point: before the claim
  with taken as (
    update {schema}.job j set
      state = 'running', worker = p_worker, fence = {schema}.next_fence(j.fence, v_now), attempt = j.attempt + 1, started_at = v_now,
      lease_until = v_now + p_lease_ms[pg_catalog.array_position(p_lanes, j.lane)] * interval '1 millisecond'
    where j.ctid = any (p_rows) and (j.expires_at is null or j.expires_at > v_now)
    returning j.*
  )
  select pg_catalog.json_build_object(
    'worker', p_worker, 'id', pg_catalog.array_agg(t.id), 'lane', pg_catalog.array_agg(t.lane), 'priority', pg_catalog.array_agg(t.priority),
    'fence', pg_catalog.array_agg(t.fence), 'attempt', pg_catalog.array_agg(t.attempt), 'maxAttempts', pg_catalog.array_agg(t.max_attempts),
    'keepDays', pg_catalog.array_agg(t.keep_days), 'createdAt', pg_catalog.array_agg({schema}.micros(t.created_at)),
    'correlationId', case when pg_catalog.count(t.correlation_id) > 0 then pg_catalog.array_agg(t.correlation_id) end,
    'input', pg_catalog.json_agg(t.input)), pg_catalog.count(*)
  into v_told, v_count from taken t;
  if v_count < pg_catalog.cardinality(p_rows) then
    -- point: before the expired ones
    perform {schema}.job_end_waiting(
      (select pg_catalog.array_agg(j.ctid) from {schema}.job j where j.ctid = any (p_rows) and j.state = 'ready'), 'expired', null, v_now);
  end if;
  return case when v_count > 0 then v_told end;
end
$$;

-- The same for several workers, so many for each, in turn. If some have expired, the last of what is told says how many: whoever asks knows by that that there may be more.
create function {schema}.job_take_all(p_rows tid[], p_workers text[], p_counts integer[], p_lanes integer[], p_lease_ms bigint[]) returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_told json;
  v_all json[] := '{}';
  v_from integer := 1;
  v_taken integer := 0;
begin
  for n in 1..pg_catalog.cardinality(p_workers) loop
    exit when v_from > coalesce(pg_catalog.cardinality(p_rows), 0);
    v_told := {schema}.job_take(p_rows[v_from : v_from + p_counts[n] - 1], p_workers[n], p_lanes, p_lease_ms);
    v_from := v_from + p_counts[n];
    if v_told is not null then
      v_all := v_all || v_told;
      v_taken := v_taken + pg_catalog.json_array_length(v_told -> 'id');
    end if;
  end loop;
  if v_taken < pg_catalog.cardinality(p_rows) then
    v_all := v_all || pg_catalog.json_build_object('expired', pg_catalog.cardinality(p_rows) - v_taken);
  end if;
  return pg_catalog.array_to_json(v_all);
end
$$;

-- Moves jobs that wait, and that the caller has locked, into history.
create function {schema}.job_end_waiting(p_rows tid[], p_outcome text, p_error json, p_now timestamptz) returns void
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
begin
  -- point: before the days
  perform {schema}.job_history_day(d.day) from (
    select distinct {schema}.job_forget_on(p_now, j.keep_days) as day from {schema}.job j where j.ctid = any (p_rows) and j.keep_days > 0) d;
  -- point: before the removal
  with gone as (
    delete from {schema}.job j where j.ctid = any (p_rows) returning j.*
  )
  insert into {schema}.job_history (
    forget_on, id, fence, created_at, ended_at, lane, priority, attempt, outcome, correlation_id, input, error)
  select {schema}.job_forget_on(p_now, g.keep_days), g.id, g.fence, g.created_at, p_now, g.lane, g.priority, g.attempt, p_outcome,
    g.correlation_id, g.input, coalesce(p_error, g.error)
  from gone g where g.keep_days > 0;
end
$$;

-- Claims jobs for these workers, so many for each, in the order of the places: each is a lane and a priority, from the job on that comes after one that is known to be gone. So
-- the rows that others, or this one, have claimed before, and that nobody has vacuumed yet, are not read again: behind 300,000 of them a claim from the start took 35 to 46 ms, from
-- here 1 to 1.5.
--
-- Null: a queue is just being paused; to be asked again.
create function {schema}.job_claim(
  p_workers text[], p_counts integer[], p_lanes integer[], p_priorities integer[], p_afters bigint[], p_lease_ms bigint[]
)
  returns json
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
declare
  v_limit integer := (select pg_catalog.sum(c.n) from pg_catalog.unnest(p_counts) c (n));
  v_paused integer[];
  v_rows tid[];
begin
  if not pg_catalog.pg_try_advisory_xact_lock_shared({schema}.job_claims_key()) then
    return null;
  end if;
  -- point: before the pauses
  v_paused := {schema}.job_paused();
  -- point: before the locks
  select pg_catalog.array_agg(p.tid) into v_rows from (
    select i.tid from unnest(p_lanes, p_priorities, p_afters) c (lane, priority, after)
    cross join lateral (
      select j.ctid as tid from {schema}.job j
      where j.state = 'ready' and j.lane = c.lane and j.priority = c.priority and j.id > c.after
      order by j.id limit v_limit for update skip locked
    ) i
    where c.lane <> all (v_paused)
    limit v_limit
  ) p;
  return {schema}.job_take_all(v_rows, p_workers, p_counts, p_lanes, p_lease_ms);
end
$$;

-- The same from the start of each lane, whatever the priority: finds what has become ready behind the places, and priorities that nobody knew of. Lanes have equal shares, so that one with
-- much to do hides none of the others. Beside what it has claimed (`blocks`) it says where each lane begins then: `tops`, [lane, priority, id].
create function {schema}.job_probe(p_workers text[], p_counts integer[], p_lanes integer[], p_lease_ms bigint[])
  returns json
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
declare
  v_limit integer := (select pg_catalog.sum(c.n) from pg_catalog.unnest(p_counts) c (n));
  v_share integer := ceil(v_limit::double precision / pg_catalog.cardinality(p_lanes));
  v_paused integer[];
  v_rows tid[];
  v_blocks json;
begin
  if not pg_catalog.pg_try_advisory_xact_lock_shared({schema}.job_claims_key()) then
    return null;
  end if;
  -- point: before the pauses
  v_paused := {schema}.job_paused();
  -- point: before the locks
  select pg_catalog.array_agg(p.tid) into v_rows from (
    select i.tid from pg_catalog.unnest(p_lanes) c (lane)
    cross join lateral (
      select j.ctid as tid from {schema}.job j
      where j.state = 'ready' and j.lane = c.lane
      order by j.priority desc, j.id limit v_share for update skip locked
    ) i
    where c.lane <> all (v_paused)
    limit v_limit
  ) p;
  v_blocks := {schema}.job_take_all(v_rows, p_workers, p_counts, p_lanes, p_lease_ms);
  -- point: before the tops
  return (
    select pg_catalog.json_build_object('blocks', v_blocks, 'tops', coalesce(
      pg_catalog.json_agg(pg_catalog.json_build_array(c.lane, t.priority, t.id)), '[]'))
    from pg_catalog.unnest(p_lanes) c (lane)
    cross join lateral (
      select j.priority, j.id from {schema}.job j where j.state = 'ready' and j.lane = c.lane order by j.priority desc, j.id limit 1
    ) t
    where c.lane <> all (v_paused));
end
$$;

-- The same one by one for one worker, for when a claim has failed: a row that cannot be claimed is set aside as dead, and the rest goes on. Says what was claimed, the ids of those that
-- were set aside, and of those with which not even that could be done.
create function {schema}.job_claim_carefully(p_worker text, p_count integer, p_lanes integer[], p_lease_ms bigint[])
  returns json
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
declare
  v_paused integer[];
  v_job record;
  v_told json;
  v_all json[] := '{}';
  v_set_aside bigint[] := '{}';
  v_stuck bigint[] := '{}';
  v_error text;
begin
  if not pg_catalog.pg_try_advisory_xact_lock_shared({schema}.job_claims_key()) then
    return null;
  end if;
  -- point: before the pauses
  v_paused := {schema}.job_paused();
  -- point: before the locks
  for v_job in
    select i.tid, i.id from pg_catalog.unnest(p_lanes) c (lane)
    cross join lateral (
      select j.ctid as tid, j.id from {schema}.job j
      where j.state = 'ready' and j.lane = c.lane
      order by j.priority desc, j.id limit p_count + 100 for update skip locked
    ) i
    where c.lane <> all (v_paused)
  loop
    begin
      v_told := {schema}.job_take(array[v_job.tid], p_worker, p_lanes, p_lease_ms);
      if v_told is not null then
        v_all := v_all || v_told;
      end if;
    exception when others then
      get stacked diagnostics v_error = message_text;
      begin
        -- point: before it is set aside
        update {schema}.job j set state = 'dead', error = pg_catalog.json_build_object(
          'name', 'QuarantinedError', 'message', 'It could not be claimed: ' || v_error)
        where j.ctid = v_job.tid;
        v_set_aside := v_set_aside || v_job.id;
      exception when others then
        v_stuck := v_stuck || v_job.id;
      end;
    end;
    exit when pg_catalog.cardinality(v_all) = p_count or pg_catalog.cardinality(v_stuck) = 100;
  end loop;
  return pg_catalog.json_build_object('blocks', pg_catalog.array_to_json(v_all), 'setAside', v_set_aside, 'stuck', v_stuck);
end
$$;

-- Makes ready what is due, the longest due first. Says how many, of which queues, and in how many milliseconds the next is due; null: none waits.
create function {schema}.job_promote(p_limit integer) returns json
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
declare
  v_before timestamptz := {schema}.clock();
  v_rows tid[];
  v_queues text[];
  v_next timestamptz;
begin
  -- point: before the locks
  select pg_catalog.array_agg(d.tid) into v_rows from (
    select j.ctid as tid from {schema}.job j where j.state = 'scheduled' and j.run_at <= v_before
    order by j.run_at limit p_limit for update skip locked) d;
  if v_rows is not null then
    -- point: before the promotion
    with due as (
      update {schema}.job j set state = 'ready' where j.ctid = any (v_rows) returning j.lane
    )
    select pg_catalog.array_agg(distinct l.queue) into v_queues from due d join {schema}.lane l on l.id = d.lane;
  end if;
  -- point: before the next
  select j.run_at into v_next from {schema}.job j where j.state = 'scheduled' and j.run_at > v_before order by j.run_at limit 1;
  return pg_catalog.json_build_object('count', coalesce(pg_catalog.cardinality(v_rows), 0), 'queues', coalesce(v_queues, '{}'),
    -- `greatest` leaves nulls out: by itself it would say that something is due.
    'dueInMs', case when v_next is not null then greatest(0, ceil(pg_catalog.date_part('epoch', v_next - {schema}.clock()) * 1000)) end);
end
$$;

-- Moves into history what has expired before anybody claimed it.
create function {schema}.job_expire(p_limit integer) returns integer
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
declare
  v_before timestamptz := {schema}.clock();
  v_rows tid[];
begin
  -- point: before the locks
  select pg_catalog.array_agg(e.tid) into v_rows from (
    select j.ctid as tid from {schema}.job j
    where j.expires_at <= v_before and j.state in ('ready', 'scheduled', 'gated')
    order by j.expires_at limit p_limit for update skip locked) e;
  if v_rows is null then
    return 0;
  end if;
  perform {schema}.job_end_waiting(v_rows, 'expired', null, v_before);
  return pg_catalog.cardinality(v_rows);
end
$$;
