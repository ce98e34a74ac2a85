-- compatible_from: 1
--
-- The schema's clock, times as numbers, and fences.

-- Returns the current time. All functions of this schema read the time here. Each decision about leases, windows and
-- expiry reads the clock once into a variable, after the row is locked, so that a wait for the lock counts as elapsed
-- time. The body is clock_timestamp(), because now() does not advance during the caller's transaction. Only the test
-- kit replaces this function, in a schema of its own.
create function {schema}.clock() returns timestamptz
  language sql volatile parallel safe
  as 'select pg_catalog.clock_timestamp()';

-- Returns the next fence of a row whose last fence was `last`, or 0 for a new row. Fences only grow, even if the row
-- was deleted and inserted again, because a fence is never below the clock. The caller locks the row first and reads
-- the clock once. A fence is a safe integer in JavaScript until the year 2255. The function is stable like its body: if
-- it were immutable, PostgreSQL would call it instead of inlining it.
create function {schema}.next_fence(last bigint, at timestamptz) returns bigint
  language sql stable
  as $$ select greatest(last operator(pg_catalog.+) 1, (pg_catalog.date_part('epoch', at) operator(pg_catalog.*) 1000000)::bigint) $$; -- guard: once.fence-grows

-- Converts a time to microseconds since 1970, its form on the wire. The operator has its full name, because statements
-- outside our functions use this function under any `search_path`.
create function {schema}.micros(at timestamptz) returns bigint
  language sql stable
  as $$ select (pg_catalog.date_part('epoch', at) operator(pg_catalog.*) 1000000)::bigint $$;

-- Converts microseconds since 1970 to a time, exact to the microsecond.
create function {schema}.from_micros(us bigint) returns timestamptz
  language sql stable
  as $$ select pg_catalog.to_timestamp(0) operator(pg_catalog.+) (us operator(pg_catalog.*) interval '1 microsecond') $$;
