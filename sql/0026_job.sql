-- compatible_from: 1
--
-- Jobs. The table `job` is small and has only live jobs. Finished attempts are in `job_history`.

-- The lane of a job decides which workers may run it. The lane leads the index of ready jobs, so that a worker reads
-- nothing that it may not run. Lanes are never deleted. Jobs refer to them without a foreign key, which would lock the
-- lane's row for each job.
create table {schema}.lane (
  id integer generated always as identity primary key,
  queue text collate "C" not null check (length(queue) between 1 and 200),
  name text collate "C" not null check (length(name) between 1 and 200),
  version integer not null check (version >= 1),
  unique (queue, name, version)
);

-- Queues that were paused at least once. Other queues have no row.
create table {schema}.queue (
  name text collate "C" primary key check (length(name) between 1 and 200),
  paused_at timestamptz,
  paused_by text
);

create table {schema}.job (
  id bigint generated always as identity primary key,
  -- The fence of the last claim; 0: never claimed. It only grows, and stays while the job waits for the next claim.
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
  -- The number of claims, without those that were released.
  attempt integer not null default 0,
  max_attempts integer not null,
  -- The number of days for which each attempt is kept in history; 0: not at all.
  keep_days smallint not null,
  state text collate "C" not null,
  -- The index that has the job: `ready`, `scheduled`, `dead` or `none`. No index names `state`, and a claim leaves the job
  -- in the ready index. So a claim, and the end of a short job, touch no index (HOT). A job that runs longer leaves the
  -- ready index with its first heartbeat, so that scans do not read it again and again.
  indexed_in text collate "C" not null default 'ready',
  worker text collate "C",
  correlation_id text,
  input json not null,
  progress json,
  -- The error of the last attempt: why the job has not ended, or never will.
  error json,
  -- The check is as short as possible, like the conditions of the triggers: PostgreSQL parses them for every statement
  -- that writes here. With a branch for each state, claiming one job took a quarter longer.
  constraint job_state check (
    case state
      when 'running' then indexed_in = any ('{ready,none}') and num_nulls(worker, lease_until, started_at) = 0 and fence > 0 and attempt > 0 -- guard: job.running-held, job.running-fence
      -- `gated`: waits for a dependency, and costs the claims nothing.
      else state || ' ' || indexed_in = any ('{ready ready,scheduled scheduled,gated none,dead dead}') and num_nonnulls(worker, lease_until, started_at, cancel_at) = 0 and (state <> 'dead' or error is not null)
    end
  )
) with (
  -- A queue is the worst case for the defaults of autovacuum: it turns over many times its own size. So autovacuum starts
  -- at 1,000 dead rows, or a hundredth of the table, and makes no pauses.
  autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_threshold = 10000, autovacuum_analyze_scale_factor = 0.1,
  -- A page has room for each job a second time, as claimed: without it the claim touches each index. A claim of 500 jobs
  -- took 4.6 ms, with a fillfactor of 60 8 ms, and of 90 10 ms.
  fillfactor = 45
);

-- The ready jobs in the order of claiming, and those that were claimed a moment ago.
create index job_ready_idx on {schema}.job (lane, priority desc, id) where indexed_in = 'ready';

-- Jobs that are not due yet.
create index job_scheduled_idx on {schema}.job (run_at) where indexed_in = 'scheduled';

-- `dibs.queues.list` counts the scheduled jobs of each lane up to a bound. With the index on `run_at` alone it would read the
-- scheduled jobs of all other lanes as well. Only scheduled jobs pay for this index: adding them in batches of 1,000 is 12 %
-- slower.
create index job_scheduled_lane_idx on {schema}.job (lane, id) where indexed_in = 'scheduled';

-- Dead letters.
create index job_dead_idx on {schema}.job (lane, id) where indexed_in = 'dead';

-- Jobs that may expire before they run. Only jobs with an expiry cost anything here. Dead ones may be many and are left
-- out.
create index job_expires_idx on {schema}.job (expires_at) where expires_at is not null and indexed_in <> 'dead';

-- Raises an error for a change of state that is not in this list. Every other end deletes the job: it has succeeded,
-- was canceled, has expired, or was discarded.
--
--   (new)      ready, scheduled, gated
--   ready      running, under a higher fence; scheduled; gated; dead, if it cannot be claimed
--   scheduled  ready; gated; dead
--   gated      ready; dead
--   running    ready, scheduled, gated, dead
--   dead       ready, by an operator
--
-- The condition belongs to the trigger itself, so that an allowed change calls no function.
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
    case when old.state = 'ready' and new.state = 'running' then new.fence <= old.fence -- guard: job.claim-fence
    else new.fence <> old.fence or old.state <> new.state and old.state || ' ' || new.state <> all ( -- guard: job.transitions
      '{ready scheduled,ready gated,ready dead,scheduled ready,scheduled gated,scheduled dead,gated ready,gated dead,running ready,running scheduled,running gated,running dead,dead ready}')
    end
  )
  execute function {schema}.job_refuse_transition();

create trigger job_birth before insert on {schema}.job for each row
  when (new.state in ('running', 'dead') or new.fence <> 0)
  execute function {schema}.job_refuse_transition();

-- One row is the jobs that one claim has given to one worker. No index has the running jobs: each is in at least one of
-- these rows from its claim on, and a row is checked no later than its first lease can expire. The row is deleted when
-- none of its jobs is held any more.
create table {schema}.job_held (
  id bigint generated always as identity primary key,
  worker text collate "C" not null,
  -- When recovery checks the row: no later than the end of the first lease.
  check_at timestamptz not null,
  ids bigint[] not null
) with (
  autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0
);

-- Compressing 500 numbers takes as long as claiming 100 jobs.
alter table {schema}.job_held alter ids set storage external;

create index job_held_check_at_idx on {schema}.job_held (check_at);
