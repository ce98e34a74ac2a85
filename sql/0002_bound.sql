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
