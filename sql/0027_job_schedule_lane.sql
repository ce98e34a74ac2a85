-- compatible_from: 1
--
-- `dibs.queues.list` counts the scheduled jobs of each lane up to a bound. With the index on `run_at` alone it would read the
-- scheduled jobs of all other lanes as well. Only scheduled jobs pay for this index. It is not built CONCURRENTLY: that would
-- wait for every open transaction, and the index has only the scheduled jobs of a small table.
create index job_schedule_lane_idx on {schema}.job (lane, id) where listed = 'schedule';
