-- compatible_from: 1
--
-- What operators do with jobs, queues and workers.

-- Gives a job up: at once if nobody runs it, else whoever does is told at its next heartbeat, and its attempt ends as canceled unless it succeeds first. The row's lock decides
-- between this and an end that comes at the same time.
--
--   canceled   it is over
--   canceling  its worker is told
--   dead       it has failed for good before; it can be discarded
--   ended      it was over before; or nobody has ever heard of it
--   locked     another has its row, for longer than this was to wait
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
    perform {schema}.bound({schema}.bounded_wait(p_wait_ms));
    -- point: before the lock
    select j.ctid as tid, j.state, j.lane into v_job from {schema}.job j where j.id = p_id for update;
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
  perform {schema}.job_end_waiting(array[v_job.tid], 'canceled', p_error, v_now);
  return '{"state": "canceled"}';
end
$$;

-- Dead jobs are ready again, with all their attempts before them. Answers the ids of those that were dead, and their queues.
create function {schema}.job_redrive(p_ids bigint[]) returns json
  language plpgsql volatile
  set search_path = ''
  set enable_seqscan = off
as $$
declare
  v_now timestamptz;
  v_ids bigint[];
  v_told json;
begin
  -- point: before the locks
  select pg_catalog.array_agg(d.id) into v_ids from (
    select j.id from {schema}.job j where j.id = any (p_ids) and j.state = 'dead' order by j.id for update skip locked) d;
  v_now := {schema}.clock();
  -- point: before the redrive
  with driven as (
    update {schema}.job j set state = 'ready', listed = 'line', attempt = 0, run_at = v_now, expires_at = null where j.id = any (v_ids) returning j.id, j.lane
  )
  select pg_catalog.json_build_object('ids', coalesce(pg_catalog.array_agg(d.id), '{}'), 'queues', coalesce(pg_catalog.array_agg(distinct l.queue), '{}'))
  into v_told from driven d join {schema}.lane l on l.id = d.lane;
  return v_told;
end
$$;

-- Removes dead jobs; their attempts stay in history. Answers the ids of those that it has removed.
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

-- From the moment this is committed no job of the queue is claimed: claims under way are waited for, and those that come later see it. What runs goes on.
create function {schema}.queue_pause(p_name text, p_by text, p_wait_ms integer) returns text
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
begin
  perform {schema}.bound({schema}.bounded_wait(p_wait_ms));
  -- point: before the claims
  perform pg_catalog.pg_advisory_xact_lock({schema}.job_claims_key());
  -- point: before the pause
  insert into {schema}.queue as q (name, paused_at, paused_by) values (p_name, {schema}.clock(), p_by)
  on conflict (name) do update set paused_at = coalesce(q.paused_at, excluded.paused_at), paused_by = coalesce(q.paused_by, excluded.paused_by);
  return 'paused';
end
$$;

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

-- A worker that is there from now on, or again.
create function {schema}.worker_enter(p_id text, p_host text, p_pid integer, p_lanes integer[], p_concurrency integer) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz := {schema}.clock();
begin
  -- point: before the worker
  insert into {schema}.worker as w (id, host, pid, lanes, concurrency, started_at, seen_at)
  values (p_id, p_host, p_pid, p_lanes, p_concurrency, v_now, v_now)
  on conflict (id) do update set seen_at = excluded.seen_at;
  return 'entered';
end
$$;

-- Removes workers that nobody has heard of for an hour: until then they are listed, as not alive.
create function {schema}.worker_forget(p_limit integer) returns integer
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_before timestamptz := {schema}.clock() - interval '1 hour';
  v_count integer;
begin
  -- point: before the removal
  delete from {schema}.worker w where w.id = any (array(
    select i.id from {schema}.worker i where i.seen_at < v_before order by i.id limit p_limit for update skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
