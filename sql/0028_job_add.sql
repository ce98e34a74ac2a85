-- compatible_from: 1
--
-- Adding jobs: any number in one statement, in the caller's transaction or alone.

-- Returns the id of a lane, and inserts the lane at the first use. Two callers cannot both insert it: the unique key
-- admits one row, and the other caller reads again.
create function {schema}.job_lane_id(p_queue text, p_name text, p_version integer) returns integer
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_id integer;
begin
  for n in 1..10 loop
    -- point: before the lane
    select l.id into v_id from {schema}.lane l where l.queue = p_queue and l.name = p_name and l.version = p_version;
    if found then
      return v_id;
    end if;
    -- point: before the new lane
    insert into {schema}.lane as l (queue, name, version) values (p_queue, p_name, p_version)
    on conflict do nothing returning l.id into v_id;
    if found then
      return v_id;
    end if;
  end loop;
  raise exception 'could not find or insert the lane of % in 10 tries', p_name using errcode = 'serialization_failure';
end
$$;

-- Adds jobs of several kinds. The fields that many jobs share are sent once per kind, in the arrays from `p_queues` to
-- `p_keep_days`; times are milliseconds since 1970. For each job: its input, the number of its kind from 1 (all are of
-- the first if `p_places` is empty), and its correlation id. Returns the ids in that order.
--
-- The inputs are one JSON array, which is parsed once; an array of strings would be parsed twice. One job per statement
-- cost 9 times as much. The kinds as JSON took 0.2 ms longer.
create function {schema}.job_add(
  p_queues text[], p_names text[], p_versions integer[], p_priorities integer[], p_run_at double precision[], p_delay_ms bigint[], p_expires_at double precision[],
  p_max_attempts integer[], p_keep_days smallint[], p_inputs json, p_places integer[], p_correlations text[]
) returns bigint[]
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz := {schema}.clock();
  v_lanes integer[];
  v_run_at timestamptz[];
  v_states text[];
  v_expires_at timestamptz[];
  v_ids bigint[];
begin
  for n in 1..pg_catalog.cardinality(p_names) loop
    -- point: before the lane
    v_lanes[n] := case when p_names[n] = p_names[n - 1] and p_queues[n] = p_queues[n - 1] and p_versions[n] = p_versions[n - 1] then v_lanes[n - 1]
      else {schema}.job_lane_id(p_queues[n], p_names[n], p_versions[n]) end;
    v_run_at[n] := coalesce(pg_catalog.to_timestamp(p_run_at[n] / 1000.0), v_now + coalesce(p_delay_ms[n], 0) * interval '1 millisecond');
    v_states[n] := case when v_run_at[n] > v_now then 'scheduled' else 'ready' end;
    v_expires_at[n] := pg_catalog.to_timestamp(p_expires_at[n] / 1000.0);
  end loop;
  -- point: before the jobs
  with added as (
    insert into {schema}.job as j (created_at, run_at, expires_at, lane, priority, max_attempts, keep_days, state, indexed_in, correlation_id, input)
    select v_now, v_run_at[p.kind], v_expires_at[p.kind], v_lanes[p.kind], p_priorities[p.kind], p_max_attempts[p.kind], p_keep_days[p.kind],
      v_states[p.kind], v_states[p.kind], p.correlation_id, p.input
    from (
      select coalesce(i.place, 1) as kind, i.correlation_id, i.input
      from rows from (pg_catalog.json_array_elements(p_inputs), pg_catalog.unnest(p_places), pg_catalog.unnest(p_correlations))
        as i (input, place, correlation_id)
    ) p
    returning j.id
  )
  select pg_catalog.array_agg(a.id) into v_ids from added a;
  return v_ids;
end
$$;

-- Adds one job, for programs in other languages: `select dibs.add_job('email', '{"to": "ann"}')`. Workers find the job
-- by polling, unless a notification follows. The bounds are those of `jobs.add`.
create function {schema}.add_job(
  name text, input json default 'null', queue text default 'default', priority integer default 0, run_at timestamptz default null,
  expires_at timestamptz default null, correlation_id text default null, max_attempts integer default 10, keep_days integer default 7, version integer default 1
) returns bigint
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz := {schema}.clock();
  v_run_at timestamptz := coalesce(run_at, v_now);
  v_input json := coalesce(input, 'null');
  v_bytes integer := pg_catalog.octet_length(v_input::text);
  v_lane integer;
  v_id bigint;
begin
  if coalesce(max_attempts, 0) < 1 or coalesce(version, 0) < 1 or coalesce(keep_days, -1) not between 0 and 366 or priority is null then
    raise exception 'max_attempts and version must be 1 or more, keep_days 0 to 366, and priority a number' using errcode = 'invalid_parameter_value';
  end if;
  if not pg_catalog.isfinite(v_run_at) or not pg_catalog.isfinite(expires_at) then
    raise exception 'run_at and expires_at must be moments, not infinity' using errcode = 'invalid_parameter_value';
  end if;
  if coalesce(pg_catalog.length(name), 0) not between 1 and 200 or coalesce(pg_catalog.length(queue), 0) not between 1 and 200 then
    raise exception 'name and queue must have 1 to 200 characters' using errcode = 'invalid_parameter_value';
  end if;
  if pg_catalog.length(correlation_id) > 1000 then
    raise exception 'correlation_id must have at most 1000 characters, and has %', pg_catalog.length(correlation_id) using errcode = 'invalid_parameter_value';
  end if;
  if v_bytes > 1048576 then -- guard: job.add-size
    raise exception 'input must be at most 1048576 bytes as JSON, and is %; store it elsewhere and keep its address here', v_bytes using errcode = 'invalid_parameter_value';
  end if;
  v_lane := {schema}.job_lane_id(queue, name, version);
  -- point: before the job
  insert into {schema}.job as j (created_at, run_at, expires_at, lane, priority, max_attempts, keep_days, state, indexed_in, correlation_id, input)
  values (v_now, v_run_at, add_job.expires_at, v_lane, add_job.priority, add_job.max_attempts, add_job.keep_days,
    case when v_run_at > v_now then 'scheduled' else 'ready' end, case when v_run_at > v_now then 'scheduled' else 'ready' end, add_job.correlation_id, v_input)
  returning j.id into v_id;
  return v_id;
end
$$;

-- Adds one job whose input is jsonb, which PostgreSQL does not convert to json by itself.
create function {schema}.add_job(
  name text, input jsonb, queue text default 'default', priority integer default 0, run_at timestamptz default null,
  expires_at timestamptz default null, correlation_id text default null, max_attempts integer default 10, keep_days integer default 7, version integer default 1
) returns bigint
  language sql volatile
  set search_path = ''
as $$
  select {schema}.add_job(name, input::json, queue, priority, run_at, expires_at, correlation_id, max_attempts, keep_days, version)
$$;

-- Adds one job whose input is text. PostgreSQL chooses this function for a literal, or for a parameter without a type.
-- With json and jsonb alone the call would be ambiguous.
create function {schema}.add_job(
  name text, input text, queue text default 'default', priority integer default 0, run_at timestamptz default null,
  expires_at timestamptz default null, correlation_id text default null, max_attempts integer default 10, keep_days integer default 7, version integer default 1
) returns bigint
  language sql volatile
  set search_path = ''
as $$
  select {schema}.add_job(name, input::json, queue, priority, run_at, expires_at, correlation_id, max_attempts, keep_days, version)
$$;
