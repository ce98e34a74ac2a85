-- compatible_from: 1
--
-- Successful ends of attempts. Each call names its fence and locks the row that it checks. A late worker finds another
-- fence, another state, or no row, and changes nothing. A batch locks in the order of ids and skips locked rows, so it
-- never waits; the caller sends skipped ones alone. Explored in attempt.explore.test.ts.
--
-- Jobs are found by `id = any (…)`, or by their ctid with all indexes off. A plan that joins with the ids, or uses the
-- indexes, may be made while the table is almost empty. Such a plan then reads the whole table when that is full
-- (200,000 jobs: 5 s for a batch of ends), and stays for long. Joins are hash joins: with nested loops, which are no
-- worse for the few rows that the planner expects, a heartbeat of 8,000 jobs took 4.4 s instead of 0.2 s.

-- Moves jobs that succeeded into history. `p_ids`: distinct, in their order. `p_results`: a JSON array, or null if
-- there are none. `p_keep_days`: the distinct days among them. A lease that has expired does no harm if no worker has
-- taken the job over. Returns null if all are recorded. Otherwise returns the ids that are recorded (`done`), and those
-- that are held but locked by another transaction (`locked`), which the caller sends again.
--
-- Locks: the rows in the order of their ids, skipping locked ones. Locked rows are frequent, and short: a claim whose
-- snapshot still shows a ready job locks its newer version, and only then sees that it runs. Explored in
-- attempt.explore.test.ts.
create function {schema}.job_complete(p_ids bigint[], p_fences bigint[], p_results json, p_keep_days integer[]) returns json
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_nestloop = off
  set enable_mergejoin = off
as $$
declare
  v_now timestamptz;
  v_today date;
  v_rows tid[];
  v_ids bigint[];
  v_fences bigint[];
  v_days integer;
begin
  -- point: before the locks
  select pg_catalog.array_agg(h.tid), pg_catalog.array_agg(h.id), pg_catalog.array_agg(h.fence) into v_rows, v_ids, v_fences from (
    select j.ctid as tid, j.id, j.fence from {schema}.job j
    where j.id = any (p_ids) and j.fence = any (p_fences) and j.state = 'running' -- guard: job.complete-running
    order by j.id for update skip locked) h; -- guard: job.complete-lock, job.complete-skip-locked
  if v_ids <> p_ids or v_fences <> p_fences then -- guard: job.complete-fence
    -- point: before the comparison of the fences
    -- Each job is compared with its own fence: a lost attempt may end in one batch with the attempt that has taken over.
    select pg_catalog.array_agg(h.tid), pg_catalog.array_agg(h.id) into v_rows, v_ids
    from unnest(v_rows, v_ids, v_fences) h (tid, id, fence) join unnest(p_ids, p_fences) c (id, fence) on c.id = h.id and c.fence = h.fence;
  end if;
  v_now := {schema}.clock();
  v_today := {schema}.job_forget_date(v_now, 0);
  foreach v_days in array p_keep_days loop
    perform {schema}.job_history_add_partition(v_today + v_days);
  end loop;
  perform {schema}.job_archive_succeeded(v_rows, p_ids, p_fences, p_results, p_keep_days <> '{}', v_now);
  if pg_catalog.cardinality(v_ids) = pg_catalog.cardinality(p_ids) then
    return null;
  end if;
  -- point: before the remaining rows
  return pg_catalog.json_build_object('done', coalesce(v_ids, '{}'), 'locked', {schema}.job_running_ids(p_ids, p_fences));
end
$$;

-- Moves these rows, which the caller has locked, into history.
create function {schema}.job_archive_succeeded(p_rows tid[], p_ids bigint[], p_fences bigint[], p_results json, p_is_kept boolean, p_now timestamptz) returns void
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_indexscan = off
  set enable_bitmapscan = off
  set enable_nestloop = off
  set enable_mergejoin = off
as $$
declare
  v_today date := {schema}.job_forget_date(p_now, 0);
begin
  if p_is_kept then
    -- point: before the history
    insert into {schema}.job_history (
      forget_on, id, fence, created_at, started_at, ended_at, lane, priority, attempt, outcome, worker, correlation_id, input, result)
    select v_today + j.keep_days, j.id, j.fence, j.created_at, j.started_at, p_now, j.lane, j.priority, j.attempt, 'succeeded',
      j.worker, j.correlation_id, j.input, r.result
    from {schema}.job j
    left join (
      select c.id, c.fence, case when c.result::text <> 'null' then c.result end as result
      from rows from (pg_catalog.unnest(p_ids), pg_catalog.unnest(p_fences), pg_catalog.json_array_elements(p_results)) c (id, fence, result)
      where p_results is not null) r on r.id = j.id and r.fence = j.fence
    where j.ctid = any (p_rows) and j.keep_days > 0;
  end if;
  -- point: before the removal
  delete from {schema}.job j where j.ctid = any (p_rows);
end
$$;

-- Returns the ids of the attempts that are still held. Locks nothing.
create function {schema}.job_running_ids(p_ids bigint[], p_fences bigint[]) returns bigint[]
  language sql stable
  set enable_seqscan = off
  set enable_nestloop = off
as $$
  select coalesce(pg_catalog.array_agg(j.id), '{}') from unnest(p_ids, p_fences) c (id, fence)
  join {schema}.job j on j.id = c.id and j.fence = c.fence and j.state = 'running'
  where j.id = any (p_ids)
$$;

-- Locks the row of one attempt, with a wait. Returns `held`; `lost`: another fence, another state, or no row; `locked`:
-- the wait took too long.
create function {schema}.job_lock(p_id bigint, p_fence bigint, p_wait_ms integer) returns text
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
  set enable_seqscan = off
as $$
begin
  perform {schema}.limit_lock_wait({schema}.wait_below_statement_timeout(p_wait_ms)); -- guard: job.end-bound
  -- point: before the lock
  perform from {schema}.job j where j.id = p_id and j.fence = p_fence and j.state = 'running' for update; -- guard: job.end-fence, job.end-running, job.end-lock
  return case when found then 'held' else 'lost' end;
exception when lock_not_available then
  return 'locked';
end
$$;

-- Completes one job, also in the transaction of its handler. Returns `done`, also if an earlier call did it and its
-- answer was lost; `lost`; or `locked`. Locks: the row of the job. Explored in attempt.explore.test.ts.
create function {schema}.job_complete_one(p_id bigint, p_fence bigint, p_result json, p_keep_days integer, p_wait_ms integer) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_state text := {schema}.job_lock(p_id, p_fence, p_wait_ms);
begin
  if v_state = 'held' then
    -- point: before the end
    perform {schema}.job_complete(array[p_id], array[p_fence],
      case when p_result is not null then pg_catalog.json_build_array(p_result) end, case when p_keep_days > 0 then array[p_keep_days] else '{}' end);
    return 'done';
  end if;
  if v_state = 'lost' then
    -- point: before the read
    perform from {schema}.job_history h where h.id = p_id and h.fence = p_fence and h.outcome = 'succeeded'; -- guard: job.end-replay-fence
    if found then
      return 'done';
    end if;
  end if;
  return v_state;
end
$$;

-- Completes one job in the message that also commits the writes of the handler. If the job cannot be completed, the
-- function raises an error, and nothing is kept. So a process that is paused never holds the row lock, which would keep
-- other workers from taking the job over. Locks: as job_complete_one. Explored in attempt.explore.test.ts.
create function {schema}.job_complete_or_raise(p_id bigint, p_fence bigint, p_result json, p_keep_days integer, p_wait_ms integer) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_state text := {schema}.job_complete_one(p_id, p_fence, p_result, p_keep_days, p_wait_ms);
begin
  if v_state <> 'done' then
    raise exception 'the job is %', v_state using errcode = case v_state when 'lost' then 'DIB01' else 'lock_not_available' end;
  end if;
  return v_state;
end
$$;
