-- compatible_from: 1
--
-- `dibs.queues.list` counts the scheduled jobs of each lane up to a bound. With the index on `run_at` alone it would read the
-- scheduled jobs of all other lanes as well. Only scheduled jobs pay for this index: adding them in batches of 1,000 is 12 %
-- slower. It is not built CONCURRENTLY: that would wait for every open transaction, and the job table is small.
create index job_schedule_lane_idx on {schema}.job (lane, id) where listed = 'schedule';
