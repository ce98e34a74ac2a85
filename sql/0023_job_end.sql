-- compatible_from: 1
--
-- What holds and what ends an attempt. Each names the fence that it was given, and locks the row that it checks: whoever comes late finds another fence, another state, or no row,
-- and changes nothing. A batch locks in the order of ids and skips what is locked, so it waits for nobody; what was skipped is asked for by itself. See src/jobs/attempt.explore.test.ts.
--
-- Each looks jobs up by `id = any (…)`, or by the places of rows with all indexes off. Joined with the ids, or with the indexes on, a plan that is made while the table is almost empty reads all of it when it is
-- full (200,000 jobs: 5 s for a batch of ends), and such a plan stays for long. And each joins by hash: by loops, which are no worse for the few rows that are expected, a heartbeat of 8,000 jobs took 4.4 s, and takes 0.2.

-- Done: into history, and gone. `p_ids`: each once, in their order. `p_results`: a JSON array, or null if nobody has said anything. `p_keep_days`: those that there are among them. A lease that has run out, and that nobody has taken
-- over, does no harm. Null: all are recorded; else the ids of those that are (`done`), and of those that are held, and whose rows others have locked (`locked`), to be asked for again.
--
-- That happens all the time, and not for long: whoever claims with a snapshot in which a job is still ready locks the row that it has become, and only then sees that it runs.
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
    where j.id = any (p_ids) and j.fence = any (p_fences) and j.state = 'running'
    order by j.id for update skip locked) h;
  if v_ids <> p_ids or v_fences <> p_fences then
    -- point: before they are told apart
    -- Each by its own fence: one that was lost may end beside others of the claim that has taken it over.
    select pg_catalog.array_agg(h.tid), pg_catalog.array_agg(h.id) into v_rows, v_ids
    from unnest(v_rows, v_ids, v_fences) h (tid, id, fence) join unnest(p_ids, p_fences) c (id, fence) on c.id = h.id and c.fence = h.fence;
  end if;
  v_now := {schema}.clock();
  v_today := {schema}.job_forget_on(v_now, 0);
  foreach v_days in array p_keep_days loop
    perform {schema}.job_history_day(v_today + v_days);
  end loop;
  perform {schema}.job_succeed(v_rows, p_ids, p_fences, p_results, p_keep_days <> '{}', v_now);
  if pg_catalog.cardinality(v_ids) = pg_catalog.cardinality(p_ids) then
    return null;
  end if;
  -- point: before the others
  return pg_catalog.json_build_object('done', coalesce(v_ids, '{}'), 'locked', {schema}.job_still_held(p_ids, p_fences));
end
$$;

-- Moves these rows, which the caller has locked, into history.
create function {schema}.job_succeed(p_rows tid[], p_ids bigint[], p_fences bigint[], p_results json, p_is_kept boolean, p_now timestamptz) returns void
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
  v_today date := {schema}.job_forget_on(p_now, 0);
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
  -- point: before they are gone
  delete from {schema}.job j where j.ctid = any (p_rows);
end
$$;

-- The ids of those claims that are held.
create function {schema}.job_still_held(p_ids bigint[], p_fences bigint[]) returns bigint[]
  language sql stable
  set enable_seqscan = off
  set enable_nestloop = off
as $$
  select coalesce(pg_catalog.array_agg(j.id), '{}') from unnest(p_ids, p_fences) c (id, fence)
  join {schema}.job j on j.id = c.id and j.fence = c.fence and j.state = 'running'
  where j.id = any (p_ids)
$$;

-- Waits for whoever has the row of one claim, and has it then: `held`. `lost`: another fence, another state, or no row; `locked`: it took too long.
create function {schema}.job_wait(p_id bigint, p_fence bigint, p_wait_ms integer) returns text
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
  set enable_seqscan = off
as $$
begin
  perform {schema}.bound({schema}.bounded_wait(p_wait_ms));
  -- point: before the lock
  perform from {schema}.job j where j.id = p_id and j.fence = p_fence and j.state = 'running' for update;
  return case when found then 'held' else 'lost' end;
exception when lock_not_available then
  return 'locked';
end
$$;

-- One by itself, also in a transaction together with what it has done: `done`, also if an earlier call did it whose answer was lost; `lost`; `locked`.
create function {schema}.job_complete_one(p_id bigint, p_fence bigint, p_result json, p_keep_days integer, p_wait_ms integer) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_state text := {schema}.job_wait(p_id, p_fence, p_wait_ms);
begin
  if v_state = 'held' then
    -- point: before the end
    perform {schema}.job_complete(array[p_id], array[p_fence],
      case when p_result is not null then pg_catalog.json_build_array(p_result) end, case when p_keep_days > 0 then array[p_keep_days] else '{}' end);
    return 'done';
  end if;
  if v_state = 'lost' then
    -- point: before the look
    perform from {schema}.job_history h where h.id = p_id and h.fence = p_fence and h.outcome = 'succeeded';
    if found then
      return 'done';
    end if;
  end if;
  return v_state;
end
$$;

-- The same in the message that also commits what the attempt has done: if it cannot be ended, nothing is kept. So there is no moment in which a process that stands still has the row, and
-- keeps everybody from taking the job over.
create function {schema}.job_complete_with(p_id bigint, p_fence bigint, p_result json, p_keep_days integer, p_wait_ms integer) returns text
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

-- How an attempt ends that has not succeeded: [{id, fence, to, delayMs, error}], where `to` is
--
--   retry     it has failed, and is due again after the delay
--   dead      it has failed, for good
--   snooze    it is due again after the delay, as if this attempt had not been
--   back      it is ready again, as if this attempt had not been
--   canceled  it is over
--
-- Of a job that somebody has canceled meanwhile the last is true whatever `to` says. Answers [{id, state}] of those that it has ended: the state of the job, or
-- `canceled`; and of those that are held, and that others have locked: `locked`.
create function {schema}.job_settle(p_items json) returns json
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_nestloop = off
  set enable_mergejoin = off
as $$
declare
  v_ids bigint[] := array(select m.id from {schema}.job_items(p_items) m);
  v_now timestamptz;
  v_held bigint[];
begin
  -- point: before the locks
  select pg_catalog.array_agg(h.id) into v_held from (
    select j.id from {schema}.job_items(p_items) m
    join {schema}.job j on j.id = m.id and j.fence = m.fence and j.state = 'running'
    where j.id = any (v_ids) order by j.id for update of j skip locked) h;
  v_now := {schema}.clock();
  -- point: before the days
  perform {schema}.job_history_day(d.day) from (
    select distinct {schema}.job_forget_on(v_now, j.keep_days) as day from {schema}.job j where j.id = any (v_held) and j.keep_days > 0) d;
  -- point: before the history
  insert into {schema}.job_history (
    forget_on, id, fence, created_at, started_at, ended_at, lane, priority, attempt, outcome, worker, correlation_id, input, error)
  select {schema}.job_forget_on(v_now, j.keep_days), j.id, j.fence, j.created_at, j.started_at, v_now, j.lane, j.priority, j.attempt,
    case when e.is_canceled then 'canceled' else 'failed' end, j.worker, j.correlation_id, case when e.is_canceled or m.to = 'dead' then j.input end,
    -- Whoever cancels it says why, in the job; what its handler has thrown then is due to that.
    case when j.cancel_at is null then coalesce(m.error, j.error) else j.error end
  from {schema}.job_items(p_items) m join {schema}.job j on j.id = m.id and j.fence = m.fence
  cross join lateral (select j.cancel_at is not null or m.to = 'canceled' as is_canceled) e
  where j.id = any (v_held) and j.keep_days > 0 and (e.is_canceled or m.to in ('retry', 'dead'));
  -- point: before the end
  delete from {schema}.job j using {schema}.job_items(p_items) m
  where j.id = m.id and j.fence = m.fence and j.id = any (v_held) and (j.cancel_at is not null or m.to = 'canceled');
  -- point: before the rest
  update {schema}.job j set
    state = case when m.to = 'dead' then 'dead' when m.delay_ms > 0 then 'scheduled' else 'ready' end,
    listed = case when m.to = 'dead' then 'dead' when m.delay_ms > 0 then 'schedule' else 'line' end,
    run_at = v_now + m.delay_ms * interval '1 millisecond', attempt = case when m.to in ('snooze', 'back') then j.attempt - 1 else j.attempt end,
    worker = null, lease_until = null, started_at = null, error = case when m.to = 'dead' then coalesce(m.error, '{"name": "Error", "message": ""}') else coalesce(m.error, j.error) end
  from {schema}.job_items(p_items) m where j.id = m.id and j.fence = m.fence and j.id = any (v_held);
  -- point: before the answer
  return (
    select coalesce(pg_catalog.json_agg(pg_catalog.json_build_object('id', a.id, 'state', a.state)), '[]') from (
      select h.id, coalesce(j.state, 'canceled') as state from pg_catalog.unnest(v_held) h (id) left join {schema}.job j on j.id = h.id and j.id = any (v_held)
      union all
      select j.id, 'locked' from {schema}.job_items(p_items) m join {schema}.job j on j.id = m.id and j.fence = m.fence and j.state = 'running'
      where j.id = any (v_ids)) a);
end
$$;

create function {schema}.job_items(p_items json) returns table (id bigint, fence bigint, "to" text, delay_ms bigint, error json)
  language sql stable
as $$
  select i.id, i.fence, i."to", coalesce(i."delayMs", 0), i.error
  from pg_catalog.json_to_recordset(p_items) i (id bigint, fence bigint, "to" text, "delayMs" bigint, error json)
$$;

-- One by itself: `done`; `canceled`; `lost`; `locked`. `succeeded`: it has, by a transaction whose answer was lost.
create function {schema}.job_settle_one(p_item json, p_wait_ms integer) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_state text := {schema}.job_wait((p_item ->> 'id')::bigint, (p_item ->> 'fence')::bigint, p_wait_ms);
  v_outcome text;
begin
  if v_state = 'held' then
    -- point: before the end
    v_outcome := {schema}.job_settle(pg_catalog.json_build_array(p_item)) -> 0 ->> 'state';
    return case when v_outcome = 'canceled' then v_outcome else 'done' end;
  end if;
  if v_state = 'lost' then
    -- point: before the look
    -- Of the attempt itself: one that was lost may have been canceled while it waited for the next.
    select h.outcome into v_outcome from {schema}.job_history h
    where h.id = (p_item ->> 'id')::bigint and h.fence = (p_item ->> 'fence')::bigint and h.outcome <> 'lost'
      and h.started_at is not null;
    return case when v_outcome = 'succeeded' then v_outcome when v_outcome in ('failed', 'canceled') then 'done' else 'lost' end;
  end if;
  return v_state;
end
$$;

-- Puts off the end of these leases, for so long from now on, and says of the workers that they are there. Answers what is not as it should be: `lost`, claims that are over, also those
-- whose lease has run out though nobody has taken the job yet; `locked`, those that were passed over; `canceled`, jobs that somebody wants to be given up, and why; `unknown`, workers that nobody
-- knows any more.
create function {schema}.job_beat(p_workers text[], p_ids bigint[], p_fences bigint[], p_lease_ms bigint[]) returns json
  language plpgsql volatile
  set search_path = ''
  set plan_cache_mode = force_generic_plan
  set enable_seqscan = off
  set enable_nestloop = off
  set enable_mergejoin = off
as $$
declare
  v_now timestamptz;
  v_locked bigint[];
  v_lease_ms bigint[];
  v_renewed bigint[];
  v_canceled json;
  v_unknown text[];
begin
  -- point: before the locks
  select pg_catalog.array_agg(h.id), pg_catalog.array_agg(h.lease_ms) into v_locked, v_lease_ms from (
    select j.id, c.lease_ms from unnest(p_ids, p_fences, p_lease_ms) c (id, fence, lease_ms)
    join {schema}.job j on j.id = c.id and j.fence = c.fence and j.state = 'running'
    where j.id = any (p_ids) order by j.id for no key update of j skip locked) h;
  v_now := {schema}.clock();
  -- point: before the renewal
  with renewed as (
    update {schema}.job j set lease_until = greatest(j.lease_until, v_now + c.lease_ms * interval '1 millisecond'), listed = 'none'
    from unnest(v_locked, v_lease_ms) c (id, lease_ms)
    where j.id = c.id and j.id = any (v_locked) and j.lease_until > v_now
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
  -- point: before the others
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

-- What an attempt says of itself, and how long it asks for: [{id, fence, progress, leaseMs}]. Answers the ids of those that it has written. Waits for whoever has a row.
create function {schema}.job_tell(p_id bigint, p_fence bigint, p_progress json, p_lease_ms bigint, p_wait_ms integer) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_state text := {schema}.job_wait(p_id, p_fence, p_wait_ms);
  v_now timestamptz := {schema}.clock();
begin
  if v_state = 'held' then
    -- point: before the write
    update {schema}.job j set progress = coalesce(p_progress, j.progress),
      lease_until = greatest(j.lease_until, v_now + p_lease_ms * interval '1 millisecond')
    where j.id = p_id and j.lease_until > v_now;
    return case when found then 'held' else 'lost' end;
  end if;
  return v_state;
end
$$;
