-- compatible_from: 1
--
-- Recovery of the jobs of dead workers. Every running job is in a row of job_held, which is checked when its first
-- lease may have expired. Explored in attempt.explore.test.ts.

-- Takes jobs whose lease has expired from their workers. The attempt counts as `lost`. The job is ready again, or dead
-- after its last attempt, so that a job that kills every process that runs it does not come back forever. `p_finished`:
-- rows of job_held whose jobs are said to have ended. Returns the jobs that were taken (`lost`), and whether there may
-- be more.
--
-- Locks: rows of job_held, then the jobs in the order of their ids, skipping locked ones. Two calls cannot both take a
-- job: the second skips its row, or finds under the lock that it no longer runs. A lease that was renewed meanwhile is
-- seen under the lock and left alone. Explored in attempt.explore.test.ts.
create function {schema}.job_recover(p_limit integer, p_finished bigint[]) returns json
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
  v_held bigint[];
  v_ids bigint[];
  v_lost json;
  v_is_full boolean;
begin
  -- point: before the held batches
  select pg_catalog.array_agg(h.id) into v_held from (
    select d.id from (select i.id from {schema}.job_held i where i.check_at <= v_before order by i.check_at limit 100 for update skip locked) d -- guard: job.recover-dead-lock
    union all
    select o.id from (select i.id from {schema}.job_held i where i.id = any (p_finished) and i.check_at > v_before order by i.id limit 1000 for update skip locked) o) h;
  if v_held is null then
    return '{"lost": [], "isMore": false}';
  end if;
  v_ids := array(select pg_catalog.unnest(h.ids) from {schema}.job_held h where h.id = any (v_held));
  -- Bounds the wait for a missing partition of history, because heartbeats wait behind this statement.
  perform {schema}.limit_lock_wait(1000); -- guard: job.recover-bound
  begin
    -- point: before the jobs
    v_lost := {schema}.job_recover_expired(v_ids, p_limit, v_before);
  exception when lock_not_available then
    raise;
  when others then -- guard: job.recover-isolate
    -- point: before the recovery one by one
    v_lost := {schema}.job_recover_one_by_one(v_ids, p_limit, v_before);
  end;
  v_is_full := pg_catalog.json_array_length(v_lost) = p_limit;
  -- point: before the next check
  -- An expired job that was skipped, since its row is locked, is checked again in a second; one that was beyond the
  -- limit, at once.
  update {schema}.job_held h set check_at = case when r.first > v_before or v_is_full then r.first else v_before + interval '1 second' end from (
    select i.id, pg_catalog.min(j.lease_until) as first from {schema}.job_held i
    join {schema}.job j on j.id = any (i.ids) and j.worker = i.worker and j.state = 'running'
    where i.id = any (v_held) group by i.id) r
  where h.id = r.id;
  -- point: before the removal
  delete from {schema}.job_held h where h.id = any (v_held)
    and not exists (select from {schema}.job j where j.id = any (h.ids) and j.worker = h.worker and j.state = 'running'); -- guard: job.recover-claim-kept
  return pg_catalog.json_build_object('lost', v_lost, 'isMore', v_is_full or pg_catalog.cardinality(v_held) >= 100);
end
$$;

-- Takes those of these jobs whose lease had expired at `p_before`, at most `p_limit`. Locks: as job_recover.
create function {schema}.job_recover_expired(p_ids bigint[], p_limit integer, p_before timestamptz) returns json
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_nestloop = off
  set enable_mergejoin = off
as $$
declare
  v_now timestamptz;
  v_ids bigint[];
  v_result json;
begin
  -- point: before the locks
  select pg_catalog.array_agg(e.id) into v_ids from (
    select j.id from {schema}.job j where j.id = any (p_ids) and j.state = 'running' and j.lease_until <= p_before -- guard: job.recover-live-lease
    order by j.id limit p_limit for update skip locked) e; -- guard: job.recover-lock, job.recover-skip-locked, job.recover-batch
  if v_ids is null then
    return '[]';
  end if;
  v_now := {schema}.clock();
  -- point: before the partitions
  perform {schema}.job_history_add_partition(d.day) from (
    select distinct {schema}.job_forget_date(v_now, j.keep_days) as day from {schema}.job j where j.id = any (v_ids) and j.keep_days > 0) d;
  -- point: before the history
  insert into {schema}.job_history (
    forget_on, id, fence, created_at, started_at, ended_at, lane, priority, attempt, outcome, worker, correlation_id, input, error)
  select {schema}.job_forget_date(v_now, j.keep_days), j.id, j.fence, j.created_at, j.started_at, v_now, j.lane, j.priority, j.attempt,
    case when j.cancel_at is not null then 'canceled' else 'lost' end, j.worker, j.correlation_id, case when j.cancel_at is not null then j.input end,
    case when j.cancel_at is not null then j.error else {schema}.job_lease_lost_error(j) end
  from {schema}.job j where j.id = any (v_ids) and j.keep_days > 0;
  -- point: before the end
  with gone as (
    delete from {schema}.job j where j.id = any (v_ids) and j.cancel_at is not null returning j.id, j.lane, j.worker, j.attempt, j.fence
  ), kept as (
    update {schema}.job j set
      state = case when j.attempt >= j.max_attempts then 'dead' else 'ready' end, -- guard: job.recover-max-attempts
      indexed_in = case when j.attempt >= j.max_attempts then 'dead' else 'ready' end, run_at = v_now,
      worker = null, lease_until = null, started_at = null, error = {schema}.job_lease_lost_error(j)
    from (select o.id, o.worker from {schema}.job o where o.id = any (v_ids) and o.cancel_at is null) o
    where j.id = o.id and j.id = any (v_ids)
    returning j.id, j.lane, o.worker, j.attempt, j.fence, j.state
  )
  select pg_catalog.json_agg(pg_catalog.json_build_object(
    'id', a.id, 'queue', l.queue, 'name', l.name, 'worker', a.worker, 'attempt', a.attempt, 'fence', a.fence, 'state', a.state)) into v_result
  from (select g.id, g.lane, g.worker, g.attempt, g.fence, 'canceled' as state from gone g
    union all select k.id, k.lane, k.worker, k.attempt, k.fence, k.state from kept k) a
  join {schema}.lane l on l.id = a.lane;
  return v_result;
end
$$;

-- Runs job_recover_expired for one job at a time, after it has failed for several. A job that cannot be taken does not
-- block the others. If all fail, the function fails.
create function {schema}.job_recover_one_by_one(p_ids bigint[], p_limit integer, p_before timestamptz) returns json
  language plpgsql volatile
  set search_path = ''
  set enable_seqscan = off
as $$
declare
  v_id bigint;
  v_one json;
  v_all json[] := '{}';
  v_message text;
  v_code text;
begin
  -- point: before the read
  for v_id in
    select j.id from {schema}.job j where j.id = any (p_ids) and j.state = 'running' and j.lease_until <= p_before order by j.id limit p_limit
  loop
    begin
      -- point: before the next job
      v_one := {schema}.job_recover_expired(array[v_id], 1, p_before);
      if pg_catalog.json_array_length(v_one) > 0 then
        v_all := v_all || (v_one -> 0);
      end if;
    exception when others then
      get stacked diagnostics v_message = message_text, v_code = returned_sqlstate;
    end;
  end loop;
  if v_code is not null and pg_catalog.cardinality(v_all) = 0 then
    raise exception '%', v_message using errcode = v_code;
  end if;
  return pg_catalog.array_to_json(v_all);
end
$$;

-- Releases jobs at once that these workers hold without knowing it, because the answer to their claim was lost. Returns
-- their number. Locks: as job_settle.
create function {schema}.job_release_orphaned(p_workers text[], p_known_ids bigint[]) returns integer
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_items json;
begin
  -- point: before the read
  select pg_catalog.json_agg(pg_catalog.json_build_object('id', j.id, 'fence', j.fence, 'to', 'release')) into v_items
  from {schema}.job j where j.id = any (array(select pg_catalog.unnest(h.ids) from {schema}.job_held h where h.worker = any (p_workers)))
    and j.state = 'running' and j.worker = any (p_workers) and j.id <> all (p_known_ids); -- guard: job.orphans-known
  if v_items is null then
    return 0;
  end if;
  -- point: before the release
  return (select pg_catalog.count(*) from pg_catalog.json_array_elements({schema}.job_settle(v_items)) t where t ->> 'state' <> 'locked');
end
$$;

-- Returns the error that is stored for an attempt without a recorded outcome.
create function {schema}.job_lease_lost_error(j {schema}.job) returns json
  language sql stable
as $$
  select pg_catalog.json_build_object('name', 'LeaseLostError', 'message', pg_catalog.format('Attempt %s of %s has no recorded outcome: the lease of %s expired.',
    j.attempt, j.max_attempts, j.worker))
$$;
