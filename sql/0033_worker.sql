-- compatible_from: 1
--
-- Workers: the processes that run jobs.

-- One row is one call of `work`, wherever it runs. The jobs that it runs are in `job` and nowhere else.
create table {schema}.worker (
  id text collate "C" primary key,
  host text not null,
  pid integer not null,
  lanes integer[] not null,
  concurrency integer not null,
  started_at timestamptz not null,
  seen_at timestamptz not null
);

-- Registers a worker, or registers it again. Locks: its row.
create function {schema}.worker_register(p_id text, p_host text, p_pid integer, p_lanes integer[], p_concurrency integer) returns text
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

-- Deletes workers without a heartbeat for an hour. Until then they are listed, as not alive. Locks: those rows in the
-- order of their ids, skipping locked ones.
create function {schema}.worker_delete_stale(p_limit integer) returns integer
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
