-- compatible_from: 1
--
-- Claiming jobs. A claim locks the rows that it picks and skips locked ones, so it never waits. Two claims cannot both
-- get a job: its row stays locked until the first claim commits, and then it is not ready any more. Explored in
-- claim.explore.test.ts.
--
-- The table shows the cost of a claim of 500 jobs, and of their end with history, for the server in µs per job
-- (PostgreSQL 18 on two cores, sums of runs side by side, same input):
--
--    9.1 +  6.3  the current code
--    9.4 +  8.5  the end as a join with ids and fences, instead of `id = any (…)` and a comparison of the fences
--    9.5 + 10.5  the same, and the end as one statement: deleted in a CTE whose rows go to history
--   11.9 + 10.4  the same, and the claim too: updated in a CTE whose rows are the answer, with a fence and all columns per job
--   14.1 + 10.0  the same, and the state in the conditions of the indexes: no update is HOT
--   16.3 + 10.8  the same, with an index of running jobs
--   15.0 + 12.0  written by hand in SQL: fence and history, no priorities in use, no checks, leases that no index finds
--
-- Other variants. One trigger or check less saves 0.7 each. A generated column for `indexed_in` costs 0.6, and makes
-- adding a sixth slower. History without its index saves 1.7, with BRIN instead 0.8; history in one unpartitioned table
-- saves nothing.
--
-- One job alone takes 0.45 ms, of which the network takes 0.08. With a branch for each state in the check and in the
-- trigger's condition it was 0.57, since both are parsed for each statement. Sums and leases computed by queries instead
-- of loops: 0.03 more. Looking up the pauses in place, or a trigger that runs afterwards, makes no difference.
--
-- Claims that do not touch the jobs, and record in one row per lane how far it was claimed, would take about 3. But they
-- run one at a time per lane, each as long as its commit.
--
-- A claim holds a shared advisory lock until it commits, and a pause of a queue takes it exclusively. When the pause has
-- committed, no claim of the queue is in flight. Later claims see the pause, since they read it in a statement that
-- begins after they have the lock.

-- Returns the key of the advisory lock that claims share and a pause takes exclusively.
create function {schema}.job_claim_lock_key() returns bigint
  language sql immutable
as $$ select pg_catalog.hashtextextended('{schema}:job_claim', 0) $$;

-- Returns the lanes of paused queues.
create function {schema}.job_paused_lanes() returns integer[]
  language sql stable
as $$
  select coalesce(pg_catalog.array_agg(l.id), '{}') from {schema}.queue q join {schema}.lane l on l.queue = q.name where q.paused_at is not null
$$;

-- Returns one number if all are the same, else the array.
create function {schema}.job_column_result(p_numbers integer[]) returns json
  language sql stable
as $$ select case when pg_catalog.array_remove(p_numbers, p_numbers[1]) = '{}' then pg_catalog.to_json(p_numbers[1]) else pg_catalog.to_json(p_numbers) end $$;

-- Runs the second half of a claim: gives these rows, which the caller has locked, to this worker. The rows are found by
-- their ctid with all indexes off: see 0031_job_complete.sql. The result has one array per column, or one value where
-- all are the same. For 500 jobs on two cores that takes 1.5 ms with the client's part, against 2.3 and 3.0 ms for JSON
-- arrays per job and 3.0 ms for rows.
create function {schema}.job_start(p_rows tid[], p_worker text, p_lanes integer[], p_lease_ms bigint[]) returns json
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
  v_check_at timestamptz;
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
    v_check_at := least(v_check_at, v_now + v_ms * interval '1 millisecond');
  end loop;
  -- point: before the read
  select pg_catalog.array_agg(j.lane), pg_catalog.array_agg(j.priority), pg_catalog.array_agg(j.attempt + 1), pg_catalog.array_agg(j.max_attempts), pg_catalog.array_agg(j.keep_days::integer),
    pg_catalog.array_agg({schema}.micros(j.created_at)), pg_catalog.array_agg(j.correlation_id), pg_catalog.json_agg(j.input), pg_catalog.array_agg(j.id), pg_catalog.max(j.fence)
  into v_lanes, v_priorities, v_attempts, v_max_attempts, v_keep_days, v_created_at, v_correlations, v_inputs, v_ids, v_fence
  from {schema}.job j where j.ctid = any (p_rows);
  -- One fence for all: it is higher than each row's.
  v_fence := {schema}.next_fence(v_fence, v_now); -- guard: job.take-fence
  -- point: before the claim
  update {schema}.job j set
    state = 'running', worker = p_worker, fence = v_fence, attempt = j.attempt + 1, started_at = v_now, -- guard: job.take-attempt
    lease_until = v_ends[pg_catalog.array_position(p_lanes, j.lane)]
  where j.ctid = any (p_rows);
  -- point: before the record of the claim
  insert into {schema}.job_held (worker, check_at, ids) values (p_worker, v_check_at, v_ids) -- guard: job.take-record
  returning id into v_held;
  return pg_catalog.json_build_object('worker', p_worker, 'held', v_held, 'fence', v_fence, 'id', v_ids, 'jobs', pg_catalog.json_build_object(
    'lane', {schema}.job_column_result(v_lanes), 'priority', {schema}.job_column_result(v_priorities), 'attempt', {schema}.job_column_result(v_attempts), 'maxAttempts', {schema}.job_column_result(v_max_attempts),
    'keepDays', {schema}.job_column_result(v_keep_days), 'createdAt', v_created_at,
    'correlationId', case when pg_catalog.array_remove(v_correlations, null) <> '{}' then v_correlations end, 'input', v_inputs));
end
$$;

-- Runs job_start for several workers in turn, with a number of rows for each.
create function {schema}.job_start_for_workers(p_rows tid[], p_workers text[], p_counts integer[], p_lanes integer[], p_lease_ms bigint[]) returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_all json[] := '{}';
  v_from integer := 1;
begin
  for n in 1..pg_catalog.cardinality(p_workers) loop
    exit when v_from > coalesce(pg_catalog.cardinality(p_rows), 0);
    v_all := v_all || {schema}.job_start(p_rows[v_from : v_from + p_counts[n] - 1], p_workers[n], p_lanes, p_lease_ms);
    v_from := v_from + p_counts[n];
  end loop;
  return pg_catalog.array_to_json(v_all);
end
$$;

-- Claims jobs for these workers, in the order of the cursors. A cursor is a lane, a priority and an id: the ready jobs
-- up to that id are known to be claimed. So the claim does not read rows again that were claimed before and are not
-- vacuumed yet: behind 300,000 of them a claim from the start took 35 to 46 ms, and takes 1 to 1.5 ms with a cursor.
--
-- Locks: the shared advisory lock of claims, then the rows that it picks, skipping locked ones. Two claims cannot both
-- get a job: see the head of this file. Returns null if a queue is being paused; the caller asks again. Explored in
-- claim.explore.test.ts.
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
  -- guard: job.claim-pause-order {
  if not pg_catalog.pg_try_advisory_xact_lock_shared({schema}.job_claim_lock_key()) then -- guard: job.claim-pause-lock
    return null;
  end if;
  -- point: before the pauses
  v_paused := {schema}.job_paused_lanes();
  -- guard: job.claim-pause-order }
  -- point: before the locks
  select pg_catalog.array_agg(p.tid) into v_rows from (
    select i.tid from unnest(p_lanes, p_priorities, p_afters) c (lane, priority, after)
    cross join lateral (
      select j.ctid as tid from {schema}.job j
      where j.indexed_in = 'ready' and j.state = 'ready' and j.lane = c.lane and j.priority = c.priority and j.id > c.after -- guard: job.claim-ready
        and (j.expires_at is null or j.expires_at > v_before) -- guard: job.claim-expired
      order by j.id limit v_limit for update skip locked -- guard: job.claim-lock, job.claim-skip-locked
    ) i
    where c.lane <> all (v_paused) -- guard: job.claim-paused
    limit v_limit -- guard: job.claim-limit
  ) p;
  return {schema}.job_start_for_workers(v_rows, p_workers, p_counts, p_lanes, p_lease_ms);
end
$$;

-- Claims jobs by a full scan: from the start of each lane, for every priority. The scan finds jobs that became ready
-- behind the cursors, and priorities without a cursor. Lanes have equal shares, so that a full lane hides none of the
-- others. Returns the claimed jobs (`blocks`), and the first job of each lane that was not claimed (`tops`: [lane,
-- priority, id]). Locks: as job_claim. Explored in claim.explore.test.ts.
create function {schema}.job_claim_full_scan(p_workers text[], p_counts integer[], p_lanes integer[], p_lease_ms bigint[])
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
  if not pg_catalog.pg_try_advisory_xact_lock_shared({schema}.job_claim_lock_key()) then -- guard: job.full-scan-pause-lock
    return null;
  end if;
  -- point: before the pauses
  v_paused := {schema}.job_paused_lanes();
  -- point: before the locks
  select pg_catalog.array_agg(p.tid) into v_rows from (
    select i.tid from pg_catalog.unnest(p_lanes) c (lane)
    cross join lateral (
      select j.ctid as tid from {schema}.job j
      where j.indexed_in = 'ready' and j.state = 'ready' and j.lane = c.lane and (j.expires_at is null or j.expires_at > v_before)
      order by j.priority desc, j.id limit v_share for update skip locked -- guard: job.full-scan-lock
    ) i
    where c.lane <> all (v_paused)
    limit v_limit
  ) p;
  v_blocks := {schema}.job_start_for_workers(v_rows, p_workers, p_counts, p_lanes, p_lease_ms);
  -- point: before the starts of the lanes
  return (
    select pg_catalog.json_build_object('blocks', v_blocks, 'tops', coalesce(
      pg_catalog.json_agg(pg_catalog.json_build_array(c.lane, t.priority, t.id)), '[]'))
    from pg_catalog.unnest(p_lanes) c (lane)
    cross join lateral (
      select j.priority, j.id from {schema}.job j where j.indexed_in = 'ready' and j.state = 'ready' and j.lane = c.lane and (j.expires_at is null or j.expires_at > v_before)
      order by j.priority desc, j.id limit 1
    ) t
    where c.lane <> all (v_paused));
end
$$;

-- Claims jobs one by one for one worker, after a claim of several has failed. A row that cannot be claimed is
-- quarantined as dead, and the others are claimed. Returns the claims, the ids that were quarantined (`quarantined`),
-- and the ids that could not even be quarantined (`stuck`). Locks: as job_claim. Explored in claim.explore.test.ts.
create function {schema}.job_claim_one_by_one(p_worker text, p_count integer, p_lanes integer[], p_lease_ms bigint[])
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
  v_quarantined bigint[] := '{}';
  v_stuck bigint[] := '{}';
  v_error text;
  v_code text;
begin
  if not pg_catalog.pg_try_advisory_xact_lock_shared({schema}.job_claim_lock_key()) then -- guard: job.one-by-one-pause-lock
    return null;
  end if;
  -- point: before the pauses
  v_paused := {schema}.job_paused_lanes();
  -- point: before the locks
  for v_job in
    select i.tid, i.id from pg_catalog.unnest(p_lanes) c (lane)
    cross join lateral (
      select j.ctid as tid, j.id from {schema}.job j
      where j.indexed_in = 'ready' and j.state = 'ready' and j.lane = c.lane and (j.expires_at is null or j.expires_at > v_before)
      order by j.priority desc, j.id limit p_count + 100 for update skip locked -- guard: job.one-by-one-lock
    ) i
    where c.lane <> all (v_paused)
  loop
    begin
      v_all := v_all || {schema}.job_start(array[v_job.tid], p_worker, p_lanes, p_lease_ms);
    exception when others then -- guard: job.one-by-one-isolate
      get stacked diagnostics v_error = message_text, v_code = returned_sqlstate;
      -- These errors are not the job's fault: a right or an object is missing, or the server is read-only, full, busy, or
      -- shutting down.
      if pg_catalog.left(v_code, 2) in ('08', '0A', '25', '28', '40', '42', '53', '55', '57', '58', 'XX') then
        raise;
      end if;
      begin
        -- point: before the quarantine
        update {schema}.job j set state = 'dead', indexed_in = 'dead', error = pg_catalog.json_build_object(
          'name', 'QuarantinedError', 'message', 'It could not be claimed: ' || v_error)
        where j.ctid = v_job.tid;
        v_quarantined := v_quarantined || v_job.id;
      exception when others then -- guard: job.one-by-one-quarantine
        v_stuck := v_stuck || v_job.id;
      end;
    end;
    exit when pg_catalog.cardinality(v_all) = p_count or pg_catalog.cardinality(v_stuck) = 100;
  end loop;
  return pg_catalog.json_build_object('blocks', pg_catalog.array_to_json(v_all), 'quarantined', v_quarantined, 'stuck', v_stuck);
end
$$;
