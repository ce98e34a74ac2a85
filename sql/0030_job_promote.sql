-- compatible_from: 1
--
-- Changes of jobs that no worker has: they become due, expire, or are canceled.

-- Makes due jobs ready, the longest due first. Returns their number, their queues, and the milliseconds until the next
-- job is due (null: none is scheduled). Locks: those rows, skipping locked ones, so the function never waits. Explored
-- in claim.explore.test.ts.
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
    select j.id from {schema}.job j where j.indexed_in = 'scheduled' and j.run_at <= v_before -- guard: job.promote-due
    order by j.run_at limit p_limit for update skip locked) d; -- guard: job.promote-lock
  if v_ids is not null then
    -- point: before the promotion
    with due as (
      update {schema}.job j set state = 'ready', indexed_in = 'ready' where j.id = any (v_ids) returning j.lane
    )
    select pg_catalog.array_agg(distinct l.queue) into v_queues from due d join {schema}.lane l on l.id = d.lane;
  end if;
  -- point: before the next due job
  select j.run_at into v_next from {schema}.job j where j.indexed_in = 'scheduled' and j.run_at > v_before order by j.run_at limit 1;
  return pg_catalog.json_build_object('count', coalesce(pg_catalog.cardinality(v_ids), 0), 'queues', coalesce(v_queues, '{}'),
    -- `greatest` ignores nulls: alone it would say that a job is due.
    'dueInMs', case when v_next is not null then greatest(0, ceil(pg_catalog.date_part('epoch', v_next - {schema}.clock()) * 1000)) end);
end
$$;

-- Moves jobs into history that expired before a claim. Locks: those rows, skipping locked ones. A claim and this
-- function cannot both get a job: the second skips its row, or rereads it under the lock. Explored in
-- claim.explore.test.ts.
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
    where j.expires_at <= v_before and j.indexed_in <> 'dead' and j.state in ('ready', 'scheduled', 'gated') -- guard: job.expire-state
    order by j.expires_at limit p_limit for update skip locked) e; -- guard: job.expire-lock
  if v_rows is null then
    return 0;
  end if;
  -- Bounds the wait for a missing partition of history, because heartbeats wait behind this statement.
  perform {schema}.limit_lock_wait(1000);
  perform {schema}.job_archive_unclaimed(v_rows, 'expired', null, v_before);
  return pg_catalog.cardinality(v_rows);
end
$$;

-- Moves unclaimed jobs, which the caller has locked, into history.
create function {schema}.job_archive_unclaimed(p_rows tid[], p_outcome text, p_error json, p_now timestamptz) returns void
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_indexscan = off
  set enable_bitmapscan = off
as $$
begin
  -- point: before the partitions
  perform {schema}.job_history_add_partition(d.day) from (
    select distinct {schema}.job_forget_date(p_now, j.keep_days) as day from {schema}.job j where j.ctid = any (p_rows) and j.keep_days > 0) d;
  -- point: before the removal
  with gone as (
    delete from {schema}.job j where j.ctid = any (p_rows) returning j.*
  )
  insert into {schema}.job_history (
    forget_on, id, fence, created_at, ended_at, lane, priority, attempt, outcome, correlation_id, input, error)
  select {schema}.job_forget_date(p_now, g.keep_days), g.id, g.fence, g.created_at, p_now, g.lane, g.priority, g.attempt, p_outcome,
    g.correlation_id, g.input, coalesce(p_error, g.error)
  from gone g where g.keep_days > 0;
end
$$;
