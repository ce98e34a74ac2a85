-- compatible_from: 1
--
-- Bounds for the time that a statement waits for locks.

-- Limits how long each later statement may wait for a lock. In a caller's transaction, only functions declared with
-- `set lock_timeout = 0` call it, because PostgreSQL restores the caller's value when such a function ends. The test
-- kit replaces this function in a schema of its own, so that a timeout is an event of the test.
create function {schema}.limit_lock_wait(ms integer) returns text
  language sql volatile
  as $$ select pg_catalog.set_config('lock_timeout', ms::text, true) $$;

-- Returns the length of the next of `p_parts` slices of a wait, about 75 ms. The slices differ in length, so that
-- waiting callers do not retry at the same time. Their number is fixed: it depends neither on chance nor on elapsed
-- time, because in a test `limit_lock_wait` takes no time.
create function {schema}.wait_slice_ms(p_left_ms integer, p_parts integer) returns integer
  language sql volatile
as $$
  select greatest(1, case when p_parts = 1 then p_left_ms
    else (p_left_ms / p_parts::double precision * (2 + 2 * pg_catalog.random()) / 3)::integer end)
$$;

-- Shortens a wait to less than `statement_timeout`, which would abort the caller's transaction. The wait ends one
-- second before the timeout, because `lock_timeout` fires late on a busy machine. With a timeout below two seconds, the
-- wait is at most half of it.
create function {schema}.wait_below_statement_timeout(p_wait_ms integer) returns integer
  language sql stable
as $$
  select case when t.ms > 0 then greatest(1, least(p_wait_ms, greatest(t.ms * 0.5, t.ms - 1000)))::integer else p_wait_ms end -- guard: quota.wait-before-statement-timeout
  from (select pg_catalog.date_part('epoch', pg_catalog.current_setting('statement_timeout')::interval) * 1000 as ms) t
$$;

-- Returns the time at which all waits of the current statement must end, or null without a `statement_timeout`. The
-- time counts from the start of the statement, as `statement_timeout` does.
create function {schema}.wait_deadline() returns timestamptz
  language sql volatile
as $$
  select case when pg_catalog.current_setting('statement_timeout') <> '0'
    then pg_catalog.statement_timestamp() + {schema}.wait_below_statement_timeout(2147483647) * interval '1 millisecond' end
$$;

-- Returns the milliseconds that are left to wait: `p_left_ms`, or less if `p_wait_deadline` comes first.
create function {schema}.remaining_wait_ms(p_left_ms integer, p_wait_deadline timestamptz) returns integer
  language sql volatile
as $$
  select least(p_left_ms, (pg_catalog.date_part('epoch', p_wait_deadline - pg_catalog.clock_timestamp()) * 1000)::integer)
$$;
