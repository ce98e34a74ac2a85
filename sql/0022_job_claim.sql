-- compatible_from: 1
--
-- Claiming. A claim locks what it picks and skips what others have, so it waits for nobody; a row that is locked is ready, and stays so until the claim commits, so no two
-- can both have it. See src/jobs/claim.explore.test.ts.
--
-- What a claim of 500 and its end with history cost the server, in µs for each job (PostgreSQL 18 on two cores; sums of runs side by side, with the same input):
--
--   9.1 +  6.3  as it is
--   9.4 +  8.5  its end by a join with ids and fences, and not by `id = any (…)` and a look at the fences afterwards
--   9.5 + 10.5  the same, and its end as one statement: deleted in a CTE whose rows go to history
--  11.9 + 10.4  the same, and the claim too: updated in a CTE, from whose rows the answer is made, with a fence and all columns for each job
--  14.1 + 10.0  the same, and with the state in the conditions of the indexes: no update is HOT
--  16.3 + 10.8  the same, with an index of what runs
--  15.0 + 12.0  by hand in SQL: fence and history, no priorities in use, no checks, no lease that anybody could look for
--
-- A trigger or a check less is 0.7 each; a generated column for `listed` 0.6 more, and adding takes a sixth longer; history without its index 1.7, with BRIN in its place 0.8; history in one table, not partitioned: nothing.
-- One job by itself takes 0.45 ms, of which the way there and back is 0.08. With a branch for each state in the check, and in the condition of the trigger, it was 0.57, since both are read anew for each statement; with
-- sums and ends of leases computed by queries in place of loops, 0.03 more. The pauses looked up in place, and not by a function, make no difference, nor does a trigger that runs afterwards.
-- Claims that leave the jobs alone, and note in one row for each lane how far it was claimed, would be at some 3, but one at a time in each lane, each for as long as its commit takes.
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

-- One number if all are the same.
create function {schema}.job_told(p_numbers integer[]) returns json
  language sql stable
as $$ select case when pg_catalog.array_remove(p_numbers, p_numbers[1]) = '{}' then pg_catalog.to_json(p_numbers[1]) else pg_catalog.to_json(p_numbers) end $$;

-- The rest of a claim: these rows, which the caller has locked, are run by this worker from now on. They are found by their places, with all indexes off: see sql/0023_job_end.sql. Told by column, and by one value where all have the same: of 500 jobs on two
-- cores 1.5 ms, against 2.3 and 3.0 ms with an array in JSON for each and 3.0 ms as rows, what the client does included.
create function {schema}.job_take(p_rows tid[], p_worker text, p_lanes integer[], p_lease_ms bigint[]) returns json
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_indexscan = off
  set enable_bitmapscan = off
as $$
declare
  v_now timestamptz := {schema}.clock();
  v_ends timestamptz[] := '{}';
  v_look_at timestamptz;
  v_ms bigint;
  v_lanes integer[];
  v_priorities integer[];
  v_attempts integer[];
  v_max_attempts integer[];
  v_keep_days integer[];
  v_created_at bigint[];
  v_correlations text[];
  v_inputs json;
  v_ids bigint[];
  v_fence bigint;
  v_held bigint;
begin
  foreach v_ms in array p_lease_ms loop
    v_ends := v_ends || (v_now + v_ms * interval '1 millisecond');
    v_look_at := least(v_look_at, v_now + v_ms * interval '1 millisecond');
  end loop;
  -- point: before the look
  select pg_catalog.array_agg(j.lane), pg_catalog.array_agg(j.priority), pg_catalog.array_agg(j.attempt + 1), pg_catalog.array_agg(j.max_attempts), pg_catalog.array_agg(j.keep_days::integer),
    pg_catalog.array_agg({schema}.micros(j.created_at)), pg_catalog.array_agg(j.correlation_id), pg_catalog.json_agg(j.input), pg_catalog.array_agg(j.id), pg_catalog.max(j.fence)
  into v_lanes, v_priorities, v_attempts, v_max_attempts, v_keep_days, v_created_at, v_correlations, v_inputs, v_ids, v_fence
  from {schema}.job j where j.ctid = any (p_rows);
  -- One for all of them: it is higher than each has had.
  v_fence := {schema}.next_fence(v_fence, v_now);
  -- point: before the claim
  update {schema}.job j set
    state = 'running', worker = p_worker, fence = v_fence, attempt = j.attempt + 1, started_at = v_now,
    lease_until = v_ends[pg_catalog.array_position(p_lanes, j.lane)]
  where j.ctid = any (p_rows);
  -- point: before they are known to be held
  insert into {schema}.job_held (worker, look_at, ids) values (p_worker, v_look_at, v_ids)
  returning id into v_held;
  return pg_catalog.json_build_object('worker', p_worker, 'held', v_held, 'fence', v_fence, 'id', v_ids, 'jobs', pg_catalog.json_build_object(
    'lane', {schema}.job_told(v_lanes), 'priority', {schema}.job_told(v_priorities), 'attempt', {schema}.job_told(v_attempts), 'maxAttempts', {schema}.job_told(v_max_attempts),
    'keepDays', {schema}.job_told(v_keep_days), 'createdAt', v_created_at,
    'correlationId', case when pg_catalog.array_remove(v_correlations, null) <> '{}' then v_correlations end, 'input', v_inputs));
end
$$;

-- The same for several workers, so many for each, in turn.
create function {schema}.job_take_all(p_rows tid[], p_workers text[], p_counts integer[], p_lanes integer[], p_lease_ms bigint[]) returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_all json[] := '{}';
  v_from integer := 1;
begin
  for n in 1..pg_catalog.cardinality(p_workers) loop
    exit when v_from > coalesce(pg_catalog.cardinality(p_rows), 0);
    v_all := v_all || {schema}.job_take(p_rows[v_from : v_from + p_counts[n] - 1], p_workers[n], p_lanes, p_lease_ms);
    v_from := v_from + p_counts[n];
  end loop;
  return pg_catalog.array_to_json(v_all);
end
$$;

-- Moves jobs that wait, and that the caller has locked, into history.
create function {schema}.job_end_waiting(p_rows tid[], p_outcome text, p_error json, p_now timestamptz) returns void
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_indexscan = off
  set enable_bitmapscan = off
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
  v_before timestamptz := {schema}.clock();
  v_limit integer := 0;
  v_count integer;
  v_paused integer[];
  v_rows tid[];
begin
  foreach v_count in array p_counts loop
    v_limit := v_limit + v_count;
  end loop;
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
      where j.listed = 'line' and j.state = 'ready' and j.lane = c.lane and j.priority = c.priority and j.id > c.after
        and (j.expires_at is null or j.expires_at > v_before)
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
  v_before timestamptz := {schema}.clock();
  v_limit integer := 0;
  v_count integer;
  v_share integer;
  v_paused integer[];
  v_rows tid[];
  v_blocks json;
begin
  foreach v_count in array p_counts loop
    v_limit := v_limit + v_count;
  end loop;
  v_share := ceil(v_limit::double precision / pg_catalog.cardinality(p_lanes));
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
      where j.listed = 'line' and j.state = 'ready' and j.lane = c.lane and (j.expires_at is null or j.expires_at > v_before)
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
      select j.priority, j.id from {schema}.job j where j.listed = 'line' and j.state = 'ready' and j.lane = c.lane and (j.expires_at is null or j.expires_at > v_before)
      order by j.priority desc, j.id limit 1
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
  v_before timestamptz := {schema}.clock();
  v_paused integer[];
  v_job record;
  v_all json[] := '{}';
  v_set_aside bigint[] := '{}';
  v_stuck bigint[] := '{}';
  v_error text;
  v_code text;
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
      where j.listed = 'line' and j.state = 'ready' and j.lane = c.lane and (j.expires_at is null or j.expires_at > v_before)
      order by j.priority desc, j.id limit p_count + 100 for update skip locked
    ) i
    where c.lane <> all (v_paused)
  loop
    begin
      v_all := v_all || {schema}.job_take(array[v_job.tid], p_worker, p_lanes, p_lease_ms);
    exception when others then
      get stacked diagnostics v_error = message_text, v_code = returned_sqlstate;
      -- Not the job's fault: something may not be done here, or is not there; the server is read-only, full, busy, or on its way out.
      if pg_catalog.left(v_code, 2) in ('08', '0A', '25', '28', '40', '42', '53', '55', '57', '58', 'XX') then
        raise;
      end if;
      begin
        -- point: before it is set aside
        update {schema}.job j set state = 'dead', listed = 'dead', error = pg_catalog.json_build_object(
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
  v_ids bigint[];
  v_queues text[];
  v_next timestamptz;
begin
  -- point: before the locks
  select pg_catalog.array_agg(d.id) into v_ids from (
    select j.id from {schema}.job j where j.listed = 'schedule' and j.run_at <= v_before
    order by j.run_at limit p_limit for update skip locked) d;
  if v_ids is not null then
    -- point: before the promotion
    with due as (
      update {schema}.job j set state = 'ready', listed = 'line' where j.id = any (v_ids) returning j.lane
    )
    select pg_catalog.array_agg(distinct l.queue) into v_queues from due d join {schema}.lane l on l.id = d.lane;
  end if;
  -- point: before the next
  select j.run_at into v_next from {schema}.job j where j.listed = 'schedule' and j.run_at > v_before order by j.run_at limit 1;
  return pg_catalog.json_build_object('count', coalesce(pg_catalog.cardinality(v_ids), 0), 'queues', coalesce(v_queues, '{}'),
    -- `greatest` leaves nulls out: by itself it would say that something is due.
    'dueInMs', case when v_next is not null then greatest(0, ceil(pg_catalog.date_part('epoch', v_next - {schema}.clock()) * 1000)) end);
end
$$;

-- Moves into history what has expired before anybody claimed it.
create function {schema}.job_expire(p_limit integer) returns integer
  language plpgsql volatile
  set lock_timeout = 0
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
    where j.expires_at <= v_before and j.listed <> 'dead' and j.state in ('ready', 'scheduled', 'gated')
    order by j.expires_at limit p_limit for update skip locked) e;
  if v_rows is null then
    return 0;
  end if;
  -- For a day of history that is missing: heartbeats wait behind this.
  perform {schema}.bound(1000);
  perform {schema}.job_end_waiting(v_rows, 'expired', null, v_before);
  return pg_catalog.cardinality(v_rows);
end
$$;
