-- compatible_from: 1
--
-- Actions of operators on jobs and queues.

-- Cancels a job: at once if no worker runs it. Otherwise its worker learns of the cancellation at the next heartbeat,
-- and the attempt ends as canceled unless it succeeds first. Locks: the row of the job, which decides between a
-- cancellation and an end at the same time. Explored in attempt.explore.test.ts.
--
--   canceled   the job has ended
--   canceling  its worker learns of it at the next heartbeat
--   dead       the job had failed for good before; it can be discarded
--   ended      the job had ended before, or never existed
--   locked     another transaction had its row for too long
create function {schema}.job_cancel(p_id bigint, p_error json, p_wait_ms integer) returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
  set enable_seqscan = off
as $$
declare
  v_job record;
  v_now timestamptz;
begin
  begin
    perform {schema}.limit_lock_wait({schema}.wait_below_statement_timeout(p_wait_ms)); -- guard: job.cancel-bound
    -- point: before the lock
    select j.ctid as tid, j.state, j.lane into v_job from {schema}.job j where j.id = p_id for update; -- guard: job.cancel-lock
  exception when lock_not_available then
    return '{"state": "locked"}';
  end;
  if v_job.state is null then
    return '{"state": "ended"}';
  end if;
  v_now := {schema}.clock();
  if v_job.state = 'running' then
    -- point: before the mark
    update {schema}.job j set cancel_at = coalesce(j.cancel_at, v_now), error = p_error where j.ctid = v_job.tid;
    return '{"state": "canceling"}';
  end if;
  if v_job.state = 'dead' then
    return '{"state": "dead"}';
  end if;
  -- point: before the end
  perform {schema}.job_archive_unclaimed(array[v_job.tid], 'canceled', p_error, v_now);
  return '{"state": "canceled"}';
end
$$;

-- Makes dead jobs ready again, with all their attempts before them. Returns the ids that were dead, and their queues.
-- Locks: the rows in the order of their ids, skipping locked ones. Explored in attempt.explore.test.ts.
create function {schema}.job_redrive(p_ids bigint[]) returns json
  language plpgsql volatile
  set search_path = ''
  set enable_seqscan = off
as $$
declare
  v_now timestamptz;
  v_ids bigint[];
  v_result json;
begin
  -- point: before the locks
  select pg_catalog.array_agg(d.id) into v_ids from (
    select j.id from {schema}.job j where j.id = any (p_ids) and j.state = 'dead' order by j.id for update skip locked) d; -- guard: job.redrive-lock
  v_now := {schema}.clock();
  -- point: before the redrive
  with driven as (
    update {schema}.job j set state = 'ready', indexed_in = 'ready', attempt = 0, run_at = v_now, expires_at = null where j.id = any (v_ids) returning j.id, j.lane
  )
  select pg_catalog.json_build_object('ids', coalesce(pg_catalog.array_agg(d.id), '{}'), 'queues', coalesce(pg_catalog.array_agg(distinct l.queue), '{}'))
  into v_result from driven d join {schema}.lane l on l.id = d.lane;
  return v_result;
end
$$;

-- Deletes dead jobs. Their attempts stay in history. Returns the deleted ids. Locks: the rows in the order of their
-- ids, skipping locked ones. Explored in attempt.explore.test.ts.
create function {schema}.job_discard(p_ids bigint[]) returns bigint[]
  language plpgsql volatile
  set search_path = ''
  set enable_seqscan = off
as $$
declare
  v_ids bigint[];
begin
  -- point: before the removal
  with gone as (
    delete from {schema}.job j where j.id = any (array(
      select i.id from {schema}.job i where i.id = any (p_ids) and i.state = 'dead' order by i.id for update skip locked))
    returning j.id
  )
  select coalesce(pg_catalog.array_agg(g.id), '{}') into v_ids from gone g;
  return v_ids;
end
$$;

-- Pauses a queue: once this commits, no job of the queue is claimed. Running jobs continue.
--
-- Locks: the advisory lock of claims, exclusively, then the row of the queue. The advisory lock waits for claims in
-- flight. Later claims see the pause, because they read it after they have the lock. Explored in claim.explore.test.ts.
create function {schema}.queue_pause(p_name text, p_by text, p_wait_ms integer) returns text
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
begin
  perform {schema}.limit_lock_wait({schema}.wait_below_statement_timeout(p_wait_ms));
  -- point: before the lock of the claims
  perform pg_catalog.pg_advisory_xact_lock({schema}.job_claim_lock_key()); -- guard: job.pause-waits
  -- point: before the pause
  insert into {schema}.queue as q (name, paused_at, paused_by) values (p_name, {schema}.clock(), p_by)
  on conflict (name) do update set paused_at = coalesce(q.paused_at, excluded.paused_at), paused_by = coalesce(q.paused_by, excluded.paused_by);
  return 'paused';
end
$$;

-- Resumes a queue. Returns `resumed`, or `running` if the queue was not paused. Locks: the row of the queue. Explored
-- in claim.explore.test.ts.
create function {schema}.queue_resume(p_name text) returns text
  language plpgsql volatile
  set search_path = ''
as $$
begin
  -- point: before the end of the pause
  update {schema}.queue q set paused_at = null, paused_by = null where q.name = p_name and q.paused_at is not null;
  return case when found then 'resumed' else 'running' end;
end
$$;
