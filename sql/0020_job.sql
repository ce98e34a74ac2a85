-- compatible_from: 1
--
-- Jobs: one small table of what is live, and a history of attempts by the day on which they may be forgotten.

-- What decides who may run a job. It leads the index of what is ready, so that a worker reads nothing that it may not run. Lanes are never removed, and jobs name
-- theirs without a foreign key, which would lock its row for each of them.
create table {schema}.lane (
  id integer generated always as identity primary key,
  queue text collate "C" not null check (length(queue) between 1 and 200),
  name text collate "C" not null check (length(name) between 1 and 200),
  version integer not null check (version >= 1),
  unique (queue, name, version)
);

-- Only of queues that were ever paused.
create table {schema}.queue (
  name text collate "C" primary key check (length(name) between 1 and 200),
  paused_at timestamptz,
  paused_by text
);

create table {schema}.job (
  id bigint generated always as identity primary key,
  -- Of the last claim; 0: never claimed. It only grows, and stays while the job waits to be claimed again.
  fence bigint not null default 0,
  created_at timestamptz not null,
  run_at timestamptz not null,
  -- In no index, so that a heartbeat is a small write.
  lease_until timestamptz,
  started_at timestamptz,
  expires_at timestamptz,
  cancel_at timestamptz,
  lane integer not null,
  priority integer not null,
  -- How often it was claimed, not counting what was given back.
  attempt integer not null default 0,
  max_attempts integer not null,
  -- How long each attempt is kept in history; 0: not at all.
  keep_days smallint not null,
  state text collate "C" not null,
  -- Which index has it: `line`, `schedule`, `dead` or `none`. None of them names the state, and a claim leaves a job in the line: so a claim, and the end of what is soon over, touches no index (HOT). What runs
  -- for longer leaves the line with its first heartbeat, so that nobody who looks for work reads it again and again.
  listed text collate "C" not null default 'line',
  worker text collate "C",
  correlation_id text,
  input json not null,
  progress json,
  -- Why it is not over yet, or never will be: what the last attempt has said.
  error json,
  -- As short as can be, like the conditions of the triggers: PostgreSQL reads them anew for every statement that writes here. With a branch for each state, claiming one job took a quarter longer.
  constraint job_state check (
    case state
      when 'running' then listed = any ('{line,none}') and num_nulls(worker, lease_until, started_at) = 0 and fence > 0 and attempt > 0
      -- `gated`: its key is full, and it costs those who claim nothing.
      else state || ' ' || listed = any ('{ready line,scheduled schedule,gated none,dead dead}') and num_nonnulls(worker, lease_until, started_at, cancel_at) = 0 and (state <> 'dead' or error is not null)
    end
  )
) with (
  -- A queue is the worst case of what autovacuum's defaults are made for: it turns over many times its own size. 1,000 dead rows, or a hundredth, and no pauses.
  autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_threshold = 10000, autovacuum_analyze_scale_factor = 0.1,
  -- Room for each job a second time, as claimed: without it the claim has to touch each index. 500 jobs: 4.6 ms; with a fillfactor of 60 8, of 90 10.
  fillfactor = 45
);

-- What is ready, in the order in which it is claimed, and what was claimed a moment ago.
create index job_line_idx on {schema}.job (lane, priority desc, id) where listed = 'line';
-- What is not due yet.
create index job_schedule_idx on {schema}.job (run_at) where listed = 'schedule';
-- Dead letters.
create index job_dead_idx on {schema}.job (lane, id) where listed = 'dead';
-- What may run out before it is run. Only jobs that say so pay for it, and dead ones may be many.
create index job_expires_idx on {schema}.job (expires_at) where expires_at is not null and listed <> 'dead';

-- Which state may follow which. Whatever else happens to a job deletes it: it has succeeded, was canceled, has expired, or was discarded.
--
--   (new)      ready, scheduled, gated
--   ready      running, under a higher fence; scheduled; gated; dead, if it cannot be claimed
--   scheduled  ready; gated; dead
--   gated      ready; dead
--   running    ready, scheduled, gated, dead
--   dead       ready, if an operator says so
--
-- The condition is the trigger's own, so that a good transition calls no function.
create function {schema}.job_refuse_transition() returns trigger
  language plpgsql
  set search_path = ''
as $$
begin
  raise exception 'job %: from % (fence %) to % (fence %) is no step that a job may take', new.id, coalesce(old.state, 'nothing'), coalesce(old.fence, 0), new.state, new.fence
    using errcode = 'check_violation', constraint = 'job_transition', schema = '{schema}', table = 'job';
end
$$;

create trigger job_transition before update on {schema}.job for each row
  when (
    case when old.state = 'ready' and new.state = 'running' then new.fence <= old.fence
    else new.fence <> old.fence or old.state <> new.state and old.state || ' ' || new.state <> all (
      '{ready scheduled,ready gated,ready dead,scheduled ready,scheduled gated,scheduled dead,gated ready,gated dead,running ready,running scheduled,running gated,running dead,dead ready}')
    end
  )
  execute function {schema}.job_refuse_transition();

create trigger job_birth before insert on {schema}.job for each row
  when (new.state in ('running', 'dead') or new.fence <> 0)
  execute function {schema}.job_refuse_transition();

-- One row is one call of `work`, wherever it runs. What it runs at this moment is in its jobs, and nowhere else.
create table {schema}.worker (
  id text collate "C" primary key,
  host text not null,
  pid integer not null,
  lanes integer[] not null,
  concurrency integer not null,
  started_at timestamptz not null,
  seen_at timestamptz not null
);

-- One row is what one claim has given to one worker. No index knows which jobs run: whatever runs is in one of these at least, from its claim on, and none is looked at later than the first of its leases may run
-- out. It is removed when none of its jobs is held any more.
create table {schema}.job_held (
  id bigint generated always as identity primary key,
  worker text collate "C" not null,
  -- When it is to be looked at: no later than the first of the leases ends.
  look_at timestamptz not null,
  ids bigint[] not null
) with (
  autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0
);

-- Compressing 500 numbers takes as long as claiming 100 jobs.
alter table {schema}.job_held alter ids set storage external;

create index job_held_look_at_idx on {schema}.job_held (look_at);

-- One row is one attempt that has ended, or a job that has ended without one (fence 0, or that of the attempt before). Partitioned by the day on which it may be
-- forgotten: a day that has come is dropped whole. There is no default partition: one that is missing is made.
create table {schema}.job_history (
  forget_on date not null,
  -- Of the job.
  id bigint not null,
  fence bigint not null,
  created_at timestamptz not null,
  started_at timestamptz,
  ended_at timestamptz not null,
  lane integer not null,
  priority integer not null,
  attempt integer not null,
  outcome text collate "C" not null check (outcome in ('succeeded', 'failed', 'canceled', 'expired', 'lost')),
  worker text collate "C",
  correlation_id text,
  -- Of the one that has ended the job: until then it is in the job.
  input json,
  result json,
  error json
) partition by list (forget_on);

create index job_history_id_idx on {schema}.job_history (id);

-- The day on which something may be forgotten that is kept for so many days from this moment on.
create function {schema}.job_forget_on(p_now timestamptz, p_keep_days integer) returns date
  language sql stable
as $$ select (p_now at time zone 'utc')::date + p_keep_days + 1 $$;

-- Makes the partition for a day, if there is none. Its owner's, whoever calls: a role that may only work needs no right to make tables.
create function {schema}.job_history_day(p_day date) returns void
  language plpgsql volatile security definer
  set search_path = ''
as $$
declare
  v_name text := 'job_history_' || pg_catalog.to_char(p_day, 'YYYYMMDD');
begin
  if pg_catalog.to_regclass('{schema}.' || v_name) is not null then
    return;
  end if;
  -- point: before the turn
  -- The lock that attaching takes. An advisory one would not do: a session that has looked for a name in vain remembers that until it locks a table.
  lock table {schema}.job_history in share update exclusive mode;
  if pg_catalog.to_regclass('{schema}.' || v_name) is not null then
    return;
  end if;
  -- point: before the table
  execute pg_catalog.format('create table {schema}.%I (like {schema}.job_history including constraints)', v_name);
  -- point: before it is attached
  execute pg_catalog.format('alter table {schema}.job_history attach partition {schema}.%I for values in (%L)', v_name, p_day);
end
$$;

-- Makes the partitions that will be needed for what is kept for so many days, and drops those whose day has come; each drop waits for nobody for longer than a moment,
-- since others would queue behind it. Says how many were dropped: none, if another is at it.
create function {schema}.job_history_keep(p_keep_days integer[], p_wait_ms integer) returns integer
  language plpgsql volatile security definer
  set search_path = ''
  set lock_timeout = 0
as $$
declare
  v_now timestamptz := {schema}.clock();
  v_days integer;
  v_table text;
  v_count integer := 0;
begin
  perform {schema}.bound(5000);
  foreach v_days in array p_keep_days loop
    -- point: before the days ahead
    perform {schema}.job_history_day({schema}.job_forget_on(v_now, v_days + d)) from pg_catalog.generate_series(0, 2) d;
  end loop;
  -- One at a time: PostgreSQL fails with an internal error where two drop one partition.
  if not pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended('{schema}:job_history', 0)) then
    return 0;
  end if;
  perform {schema}.bound(p_wait_ms);
  -- point: before the look
  for v_table in
    -- By its name, which it keeps when another has dropped it meanwhile.
    select pg_catalog.format('{schema}.%I', c.relname) from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid
    where i.inhparent = '{schema}.job_history'::regclass and c.relname ~ '^job_history_\d{8}$'
      and pg_catalog.to_date(pg_catalog.right(c.relname, 8), 'YYYYMMDD') <= (v_now at time zone 'utc')::date
  loop
    begin
      -- point: before the drop
      execute 'drop table ' || v_table;
      v_count := v_count + 1;
    exception when lock_not_available or undefined_table then
      null;
    end;
  end loop;
  return v_count;
end
$$;
