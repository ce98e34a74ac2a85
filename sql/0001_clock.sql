-- compatible_from: 1
--
-- The one source of time. Every decision about leases, windows and expiry reads it once into a variable after the
-- row is locked, so that waiting for the lock counts as time passed. clock_timestamp() and not now(): the latter
-- stands still for the length of the caller's transaction. Only the test kit replaces it, in a schema of its own.
create function {schema}.clock() returns timestamptz
  language sql volatile parallel safe
  as 'select pg_catalog.clock_timestamp()';
