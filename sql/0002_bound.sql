-- compatible_from: 1
--
-- Bounds how long the statements that follow may wait for a lock. In a transaction of the caller's it is called only from
-- functions declared `set lock_timeout = 0`, which give the caller its own value back. The test kit replaces it in a schema of its own, so that running out of time
-- is an event and not a matter of luck.
create function {schema}.bound(ms integer) returns text
  language sql volatile
  as $$ select pg_catalog.set_config('lock_timeout', ms::text, true) $$;

-- A fence for a row whose last one was `last`, or 0: it only grows, also when the row was deleted and made again. The
-- clock is read by the caller, once, after the row is locked. A safe integer in JavaScript until the year 2255. Stable and not
-- immutable, as what is in it: else PostgreSQL calls it in place of putting its body where it stands.
create function {schema}.next_fence(last bigint, at timestamptz) returns bigint
  language sql stable
  as $$ select greatest(last operator(pg_catalog.+) 1, (pg_catalog.date_part('epoch', at) operator(pg_catalog.*) 1000000)::bigint) $$;

-- A time on the wire: microseconds since 1970. The operator is named in full, since statements outside of our functions use
-- it under whatever `search_path` the session has.
create function {schema}.micros(at timestamptz) returns bigint
  language sql stable
  as $$ select (pg_catalog.date_part('epoch', at) operator(pg_catalog.*) 1000000)::bigint $$;

-- How long one of so many parts of a wait is: about 75 ms, and not all of one length, so that those who wait do not come back together. Their
-- number does not depend on chance, nor on how long they take: a test's own `bound` takes no time.
create function {schema}.part_of_wait(p_left_ms integer, p_parts integer) returns integer
  language sql volatile
as $$
  select greatest(1, case when p_parts = 1 then p_left_ms
    else (p_left_ms / p_parts::double precision * (2 + 2 * pg_catalog.random()) / 3)::integer end)
$$;

-- How long a wait may be: less than `statement_timeout`, which would abort the caller's transaction. The wait ends a second
-- before the timeout, because `lock_timeout` fires late on a busy machine; a timeout below two seconds is halved.
create function {schema}.bounded_wait(p_wait_ms integer) returns integer
  language sql stable
as $$
  select case when t.ms > 0 then greatest(1, least(p_wait_ms, greatest(t.ms * 0.5, t.ms - 1000)))::integer else p_wait_ms end
  from (select pg_catalog.date_part('epoch', pg_catalog.current_setting('statement_timeout')::interval) * 1000 as ms) t
$$;

-- When all waits of the current statement must be over. `statement_timeout` counts from the start of the statement, so this
-- does too. Null without a timeout.
create function {schema}.wait_end() returns timestamptz
  language sql volatile
as $$
  select case when pg_catalog.current_setting('statement_timeout') <> '0'
    then pg_catalog.statement_timestamp() + {schema}.bounded_wait(2147483647) * interval '1 millisecond' end
$$;

create function {schema}.left_of_wait(p_left_ms integer, p_wait_end timestamptz) returns integer
  language sql volatile
as $$
  select least(p_left_ms, (pg_catalog.date_part('epoch', p_wait_end - pg_catalog.clock_timestamp()) * 1000)::integer)
$$;
