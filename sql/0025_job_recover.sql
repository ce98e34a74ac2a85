-- compatible_from: 1
--
-- What workers that are gone have left. Whatever runs is in a row of job_held, which is looked at when the first of its leases may have run out. See src/jobs/attempt.explore.test.ts.

-- Takes jobs from workers that are gone: those whose lease has run out. The attempt counts, as `lost`; the job is ready again, or dead if that was its last one: so a job that
-- ends every process that runs it does not go round for ever. A lease that was renewed meanwhile is seen under the lock, and left alone. `p_over`: rows of job_held whose jobs are said to be over. Says what it
-- has taken (`lost`), and whether there may be more.
create function {schema}.job_recover(p_limit integer, p_over bigint[]) returns json
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
  -- point: before the claims
  select pg_catalog.array_agg(h.id) into v_held from (
    select d.id from (select i.id from {schema}.job_held i where i.look_at <= v_before order by i.look_at limit 100 for update skip locked) d
    union all
    select o.id from (select i.id from {schema}.job_held i where i.id = any (p_over) and i.look_at > v_before order by i.id limit 1000 for update skip locked) o) h;
  if v_held is null then
    return '{"lost": [], "isMore": false}';
  end if;
  v_ids := array(select pg_catalog.unnest(h.ids) from {schema}.job_held h where h.id = any (v_held));
  -- For a day of history that is missing: heartbeats wait behind this.
  perform {schema}.bound(1000);
  begin
    -- point: before the jobs
    v_lost := {schema}.job_take_from_lost(v_ids, p_limit, v_before);
  exception when lock_not_available then
    raise;
  when others then
    -- point: before they are taken one by one
    v_lost := {schema}.job_take_from_lost_carefully(v_ids, p_limit, v_before);
  end;
  v_is_full := pg_catalog.json_array_length(v_lost) = p_limit;
  -- point: before they are looked at again
  -- What has run out and was passed over, since somebody has its row, is not looked for all the time; what was one too many is.
  update {schema}.job_held h set look_at = case when r.first > v_before or v_is_full then r.first else v_before + interval '1 second' end from (
    select i.id, pg_catalog.min(j.lease_until) as first from {schema}.job_held i
    join {schema}.job j on j.id = any (i.ids) and j.worker = i.worker and j.state = 'running'
    where i.id = any (v_held) group by i.id) r
  where h.id = r.id;
  -- point: before they are gone
  delete from {schema}.job_held h where h.id = any (v_held)
    and not exists (select from {schema}.job j where j.id = any (h.ids) and j.worker = h.worker and j.state = 'running');
  return pg_catalog.json_build_object('lost', v_lost, 'isMore', v_is_full or pg_catalog.cardinality(v_held) >= 100);
end
$$;

-- Those of these jobs whose lease had run out at that time, in bounded number.
create function {schema}.job_take_from_lost(p_ids bigint[], p_limit integer, p_before timestamptz) returns json
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
  v_told json;
begin
  -- point: before the locks
  select pg_catalog.array_agg(e.id) into v_ids from (
    select j.id from {schema}.job j where j.id = any (p_ids) and j.state = 'running' and j.lease_until <= p_before
    order by j.id limit p_limit for update skip locked) e;
  if v_ids is null then
    return '[]';
  end if;
  v_now := {schema}.clock();
  -- point: before the days
  perform {schema}.job_history_day(d.day) from (
    select distinct {schema}.job_forget_on(v_now, j.keep_days) as day from {schema}.job j where j.id = any (v_ids) and j.keep_days > 0) d;
  -- point: before the history
  insert into {schema}.job_history (
    forget_on, id, fence, created_at, started_at, ended_at, lane, priority, attempt, outcome, worker, correlation_id, input, error)
  select {schema}.job_forget_on(v_now, j.keep_days), j.id, j.fence, j.created_at, j.started_at, v_now, j.lane, j.priority, j.attempt,
    case when j.cancel_at is not null then 'canceled' else 'lost' end, j.worker, j.correlation_id, case when j.cancel_at is not null then j.input end,
    case when j.cancel_at is not null then j.error else {schema}.job_loss(j) end
  from {schema}.job j where j.id = any (v_ids) and j.keep_days > 0;
  -- point: before the end
  with gone as (
    delete from {schema}.job j where j.id = any (v_ids) and j.cancel_at is not null returning j.id, j.lane, j.worker, j.attempt, j.fence
  ), kept as (
    update {schema}.job j set
      state = case when j.attempt >= j.max_attempts then 'dead' else 'ready' end,
      listed = case when j.attempt >= j.max_attempts then 'dead' else 'line' end, run_at = v_now,
      worker = null, lease_until = null, started_at = null, error = {schema}.job_loss(j)
    from (select o.id, o.worker from {schema}.job o where o.id = any (v_ids) and o.cancel_at is null) o
    where j.id = o.id and j.id = any (v_ids)
    returning j.id, j.lane, o.worker, j.attempt, j.fence, j.state
  )
  select pg_catalog.json_agg(pg_catalog.json_build_object(
    'id', a.id, 'queue', l.queue, 'name', l.name, 'worker', a.worker, 'attempt', a.attempt, 'fence', a.fence, 'state', a.state)) into v_told
  from (select g.id, g.lane, g.worker, g.attempt, g.fence, 'canceled' as state from gone g
    union all select k.id, k.lane, k.worker, k.attempt, k.fence, k.state from kept k) a
  join {schema}.lane l on l.id = a.lane;
  return v_told;
end
$$;

-- The same one by one, for when that has failed: one that cannot be taken keeps none of the others. If it is all of them, it fails.
create function {schema}.job_take_from_lost_carefully(p_ids bigint[], p_limit integer, p_before timestamptz) returns json
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
  -- point: before the look
  for v_id in
    select j.id from {schema}.job j where j.id = any (p_ids) and j.state = 'running' and j.lease_until <= p_before order by j.id limit p_limit
  loop
    begin
      -- point: before the next
      v_one := {schema}.job_take_from_lost(array[v_id], 1, p_before);
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

-- What these workers hold and do not know of, since the answer to their claim was lost, is ready again at once. Says how many.
create function {schema}.job_give_strays_back(p_workers text[], p_known bigint[]) returns integer
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_items json;
begin
  -- point: before the look
  select pg_catalog.json_agg(pg_catalog.json_build_object('id', j.id, 'fence', j.fence, 'to', 'back')) into v_items
  from {schema}.job j where j.id = any (array(select pg_catalog.unnest(h.ids) from {schema}.job_held h where h.worker = any (p_workers)))
    and j.state = 'running' and j.worker = any (p_workers) and j.id <> all (p_known);
  if v_items is null then
    return 0;
  end if;
  -- point: before they are given back
  return (select pg_catalog.count(*) from pg_catalog.json_array_elements({schema}.job_settle(v_items)) t where t ->> 'state' <> 'locked');
end
$$;

-- The error that is stored for an attempt without a recorded outcome.
create function {schema}.job_loss(j {schema}.job) returns json
  language sql stable
as $$
  select pg_catalog.json_build_object('name', 'LeaseLostError', 'message', pg_catalog.format('Attempt %s of %s has no recorded outcome: the lease of %s expired.',
    j.attempt, j.max_attempts, j.worker))
$$;
