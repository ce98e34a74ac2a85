-- compatible_from: 1
--
-- Finished attempts, partitioned by the day on which they may be deleted.

-- One row is one attempt that has ended, or a job that ended without one (fence 0, or that of the attempt before). The
-- table is partitioned by the day on which rows may be deleted: a partition whose day has come is dropped whole. There
-- is no default partition: a missing partition is created.
create table {schema}.job_history (
  forget_on date not null,
  -- The id of the job.
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
  -- Only the attempt that ended the job has the input: until then the job has it.
  input json,
  result json,
  error json
) partition by list (forget_on);

create index job_history_id_idx on {schema}.job_history (id);

-- Returns the day on which a row may be deleted that is kept for this number of days from now on.
create function {schema}.job_forget_date(p_now timestamptz, p_keep_days integer) returns date
  language sql stable
as $$ select (p_now at time zone 'utc')::date + p_keep_days + 1 $$;

-- Creates the partition for a day, unless it exists. The function has the rights of its owner: a role that only works
-- on jobs needs no right to create tables.
--
-- Locks: the table, in the mode that ATTACH takes. Two callers cannot both create the partition: the second gets the
-- lock later and finds the partition.
create function {schema}.job_history_add_partition(p_day date) returns void
  language plpgsql volatile security definer
  set search_path = ''
as $$
declare
  v_name text := 'job_history_' || pg_catalog.to_char(p_day, 'YYYYMMDD');
begin
  if pg_catalog.to_regclass('{schema}.' || v_name) is not null then
    return;
  end if;
  -- point: before the table lock
  -- ATTACH takes the same lock. An advisory lock would not do: a session remembers that a name did not exist until it
  -- locks a table.
  lock table {schema}.job_history in share update exclusive mode; -- guard: job.history-day-lock
  if pg_catalog.to_regclass('{schema}.' || v_name) is not null then
    return;
  end if;
  -- point: before the table
  execute pg_catalog.format('create table {schema}.%I (like {schema}.job_history including constraints)', v_name);
  -- point: before the attachment
  execute pg_catalog.format('alter table {schema}.job_history attach partition {schema}.%I for values in (%L)', v_name, p_day);
end
$$;

-- Creates the partitions that will be needed, and drops those whose day has come. A drop waits only for a moment,
-- because other statements queue behind the wait. Returns the number of dropped partitions: 0 if another process is
-- dropping.
--
-- Locks: as job_history_add_partition, then an advisory lock, so that one process at a time drops, then each partition.
create function {schema}.job_history_maintain(p_keep_days integer[], p_wait_ms integer) returns integer
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
  perform {schema}.limit_lock_wait(5000);
  foreach v_days in array p_keep_days loop
    -- point: before the partitions ahead
    perform {schema}.job_history_add_partition({schema}.job_forget_date(v_now, v_days + d)) from pg_catalog.generate_series(0, 2) d;
  end loop;
  -- One process at a time: PostgreSQL fails with an internal error where two drop one partition.
  if not pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended('{schema}:job_history', 0)) then -- guard: job.history-drop-lock
    return 0;
  end if;
  perform {schema}.limit_lock_wait(p_wait_ms); -- guard: job.history-drop-bound
  -- point: before the read
  for v_table in
    -- The loop uses names, which stay the same when another process drops a table meanwhile.
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
