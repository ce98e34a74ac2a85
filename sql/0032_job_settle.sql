-- compatible_from: 1
--
-- Ends of attempts that did not succeed. The head of 0031_job_complete.sql holds here as well.

-- Ends attempts that have not succeeded: [{id, fence, to, delayMs, error}], where `to` is
--
--   retry     failed, due again after the delay
--   dead      failed for good
--   snooze    due again after the delay, and the attempt does not count
--   release   ready again, and the attempt does not count
--   canceled  ended as canceled
--
-- A job that was canceled meanwhile becomes `canceled` whatever `to` is. Returns [{id, state}]: the state of the job,
-- or `canceled`; and `locked` for attempts that are held but locked by another transaction.
--
-- Locks: the rows in the order of their ids, skipping locked ones. Explored in attempt.explore.test.ts.
create function {schema}.job_settle(p_items json) returns json
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_nestloop = off
  set enable_mergejoin = off
as $$
declare
  v_ids bigint[] := array(select m.id from {schema}.job_settlements(p_items) m);
  v_now timestamptz;
  v_held bigint[];
begin
  -- point: before the locks
  select pg_catalog.array_agg(h.id) into v_held from (
    select j.id from {schema}.job_settlements(p_items) m
    join {schema}.job j on j.id = m.id and j.fence = m.fence and j.state = 'running' -- guard: job.settle-fence
    where j.id = any (v_ids) order by j.id for update of j skip locked) h; -- guard: job.settle-lock, job.settle-skip-locked
  v_now := {schema}.clock();
  -- point: before the partitions
  perform {schema}.job_history_add_partition(d.day) from (
    select distinct {schema}.job_forget_date(v_now, j.keep_days) as day from {schema}.job j where j.id = any (v_held) and j.keep_days > 0) d;
  -- point: before the history
  insert into {schema}.job_history (
    forget_on, id, fence, created_at, started_at, ended_at, lane, priority, attempt, outcome, worker, correlation_id, input, error)
  select {schema}.job_forget_date(v_now, j.keep_days), j.id, j.fence, j.created_at, j.started_at, v_now, j.lane, j.priority, j.attempt,
    case when e.is_canceled then 'canceled' else 'failed' end, j.worker, j.correlation_id, case when e.is_canceled or m.to = 'dead' then j.input end,
    -- A cancellation stores its reason in the job. An error that the handler threw because of it does not count.
    case when j.cancel_at is null then coalesce(m.error, j.error) else j.error end
  from {schema}.job_settlements(p_items) m join {schema}.job j on j.id = m.id and j.fence = m.fence
  cross join lateral (select j.cancel_at is not null or m.to = 'canceled' as is_canceled) e
  where j.id = any (v_held) and j.keep_days > 0 and (e.is_canceled or m.to in ('retry', 'dead'));
  -- point: before the end
  delete from {schema}.job j using {schema}.job_settlements(p_items) m
  where j.id = m.id and j.fence = m.fence and j.id = any (v_held) and (j.cancel_at is not null or m.to = 'canceled');
  -- point: before the remaining jobs
  update {schema}.job j set
    state = case when m.to = 'dead' then 'dead' when m.delay_ms > 0 then 'scheduled' else 'ready' end,
    indexed_in = case when m.to = 'dead' then 'dead' when m.delay_ms > 0 then 'scheduled' else 'ready' end,
    run_at = v_now + m.delay_ms * interval '1 millisecond', attempt = case when m.to in ('snooze', 'release') then j.attempt - 1 else j.attempt end,
    worker = null, lease_until = null, started_at = null, error = case when m.to = 'dead' then coalesce(m.error, '{"name": "Error", "message": ""}') else coalesce(m.error, j.error) end
  from {schema}.job_settlements(p_items) m where j.id = m.id and j.fence = m.fence and j.id = any (v_held);
  -- point: before the result
  return (
    select coalesce(pg_catalog.json_agg(pg_catalog.json_build_object('id', a.id, 'state', a.state)), '[]') from (
      select h.id, coalesce(j.state, 'canceled') as state from pg_catalog.unnest(v_held) h (id) left join {schema}.job j on j.id = h.id and j.id = any (v_held)
      union all
      select j.id, 'locked' from {schema}.job_settlements(p_items) m join {schema}.job j on j.id = m.id and j.fence = m.fence and j.state = 'running'
      where j.id = any (v_ids)) a);
end
$$;

-- Reads the argument of job_settle as rows.
create function {schema}.job_settlements(p_items json) returns table (id bigint, fence bigint, "to" text, delay_ms bigint, error json)
  language sql stable
as $$
  select i.id, i.fence, i."to", coalesce(i."delayMs", 0), i.error
  from pg_catalog.json_to_recordset(p_items) i (id bigint, fence bigint, "to" text, "delayMs" bigint, error json)
$$;

-- Ends one attempt. Returns `done`, `canceled`, `lost` or `locked`; or `succeeded`: a transaction whose answer was lost
-- has completed the job. Locks: the row of the job, with a wait. Explored in attempt.explore.test.ts.
create function {schema}.job_settle_one(p_item json, p_wait_ms integer) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_state text := {schema}.job_lock((p_item ->> 'id')::bigint, (p_item ->> 'fence')::bigint, p_wait_ms);
  v_outcome text;
begin
  if v_state = 'held' then
    -- point: before the end
    v_outcome := {schema}.job_settle(pg_catalog.json_build_array(p_item)) -> 0 ->> 'state';
    return case when v_outcome = 'canceled' then v_outcome else 'done' end;
  end if;
  if v_state = 'lost' then
    -- point: before the read
    -- Reads only this attempt: a lost attempt's job may have been canceled while it waited for the next.
    select h.outcome into v_outcome from {schema}.job_history h
    where h.id = (p_item ->> 'id')::bigint and h.fence = (p_item ->> 'fence')::bigint and h.outcome <> 'lost'
      and h.started_at is not null;
    return case when v_outcome = 'succeeded' then v_outcome when v_outcome in ('failed', 'canceled') then 'done' else 'lost' end;
  end if;
  return v_state;
end
$$;
