-- compatible_from: 1
--
-- Heartbeats: renew the leases of running jobs and record their progress. The head of 0031_job_complete.sql holds here
-- as well.

-- Extends leases from now on, and records that the workers are alive. Returns the exceptions: `lost`, attempts that
-- have ended, also those whose lease has expired although nobody has taken the job yet; `locked`, those that were
-- skipped; `canceled`, canceled jobs with the reason; `unknown`, workers without a row.
--
-- Locks: the rows in the order of their ids, skipping locked ones. A worker that lost a job cannot extend its lease,
-- because its fence differs. Explored in attempt.explore.test.ts.
create function {schema}.job_heartbeat(p_workers text[], p_ids bigint[], p_fences bigint[], p_lease_ms bigint[]) returns json
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
  v_lease_ms bigint[];
  v_renewed bigint[];
  v_canceled json;
  v_unknown text[];
begin
  -- point: before the locks
  select pg_catalog.array_agg(h.id), pg_catalog.array_agg(h.lease_ms) into v_ids, v_lease_ms from (
    select j.id, c.lease_ms from unnest(p_ids, p_fences, p_lease_ms) c (id, fence, lease_ms)
    join {schema}.job j on j.id = c.id and j.fence = c.fence and j.state = 'running' -- guard: job.heartbeat-fence
    where j.id = any (p_ids) order by j.id for no key update of j skip locked) h; -- guard: job.heartbeat-lock, job.heartbeat-skip-locked
  v_now := {schema}.clock();
  -- point: before the renewal
  with renewed as (
    update {schema}.job j set lease_until = greatest(j.lease_until, v_now + c.lease_ms * interval '1 millisecond'), indexed_in = 'none'
    from unnest(v_ids, v_lease_ms) c (id, lease_ms)
    where j.id = c.id and j.id = any (v_ids) and j.lease_until > v_now -- guard: job.heartbeat-live
    returning j.id, j.cancel_at, j.error
  )
  select pg_catalog.array_agg(r.id), pg_catalog.json_object_agg(r.id, r.error) filter (where r.cancel_at is not null) into v_renewed, v_canceled from renewed r;
  -- point: before the workers
  with seen as (
    update {schema}.worker w set seen_at = v_now where w.id = any (p_workers) returning w.id
  )
  select pg_catalog.array_agg(u.id) into v_unknown from pg_catalog.unnest(p_workers) u (id) where u.id not in (select s.id from seen s);
  if coalesce(pg_catalog.cardinality(v_renewed), 0) = pg_catalog.cardinality(p_ids) then
    return pg_catalog.json_build_object('lost', '{}'::bigint[], 'locked', '{}'::bigint[], 'canceled', coalesce(v_canceled, '{}'::json), 'unknown', coalesce(v_unknown, '{}'));
  end if;
  -- point: before the remaining rows
  return (
    select pg_catalog.json_build_object(
      'lost', coalesce(pg_catalog.array_agg(c.id) filter (where j.id is null), '{}'),
      'locked', coalesce(pg_catalog.array_agg(c.id) filter (where j.id is not null), '{}'),
      'canceled', coalesce(v_canceled, '{}'::json), 'unknown', coalesce(v_unknown, '{}'))
    from unnest(p_ids, p_fences) c (id, fence)
    left join {schema}.job j on j.id = c.id and j.fence = c.fence and j.state = 'running' and j.lease_until > v_now
    where c.id <> all (coalesce(v_renewed, '{}')));
end
$$;

-- Records the progress of an attempt, and extends its lease. Returns `held`, `lost` or `locked`. Locks: the row of the
-- job, with a wait.
create function {schema}.job_record_progress(p_id bigint, p_fence bigint, p_progress json, p_lease_ms bigint, p_wait_ms integer) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_state text := {schema}.job_lock(p_id, p_fence, p_wait_ms);
  v_now timestamptz := {schema}.clock();
begin
  if v_state = 'held' then
    -- point: before the write
    update {schema}.job j set progress = coalesce(p_progress, j.progress),
      lease_until = greatest(j.lease_until, v_now + p_lease_ms * interval '1 millisecond')
    where j.id = p_id and j.lease_until > v_now; -- guard: job.record-live
    return case when found then 'held' else 'lost' end;
  end if;
  return v_state;
end
$$;
