-- compatible_from: 1
--
-- Which request works on a key, told by advisory locks to those who cannot see its claim yet.

-- A joined claim is seen by nobody before it commits, so one who comes meanwhile, and is not to wait, could not learn that the
-- key belongs to another request. So whoever has claimed announces it, with two locks that end with its transaction: first for
-- the key with this fingerprint, then for the key. It never waits for them: unannounced, it is taken for the same request.
--
-- Whoever finds the key taken looks in the same order, and keeps what it gets. If it has the first (shared, so that
-- those who look are not in each other's way), nobody with its own fingerprint is announced, nor can be from now on; if then the
-- second cannot be had, somebody is. That is another request, whatever has ended or begun between the two looks.
-- Shown by once.explore.test.ts. Two keys with one hash, of 64 bits, would be taken for one.
create function {schema}.claim_begin_announced(
  p_scope text, p_key text, p_id text, p_fingerprint text, p_keep_ms bigint, p_wait_ms integer
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_told json := {schema}.claim_begin_joined(p_scope, p_key, p_id, p_fingerprint, p_keep_ms, p_wait_ms);
  -- The beginning is enough, and an outcome may be long.
  v_state text := pg_catalog.substring(pg_catalog.left(v_told::text, 40), '^{"state" ?: "([a-z ]+)"');
  -- Locks are of the whole database; no two schemas, scopes and keys make the same text.
  v_name text := '{schema}:' || pg_catalog.length(p_scope)::text || ':' || p_scope || p_key;
  v_key bigint := pg_catalog.hashtextextended(v_name, 0);
  v_request bigint := pg_catalog.hashtextextended(v_name || p_fingerprint, 1);
begin
  if v_state = 'claimed' then
    -- point: before the announcement
    if pg_catalog.pg_try_advisory_xact_lock(v_request) then
      -- point: half announced
      perform pg_catalog.pg_try_advisory_xact_lock(v_key);
    end if;
  elsif v_state = 'busy' then
    -- point: taken
    if pg_catalog.pg_try_advisory_xact_lock_shared(v_request) then
      -- point: not the same
      if not pg_catalog.pg_try_advisory_xact_lock_shared(v_key) then
        return '{"state": "mismatch"}';
      end if;
    end if;
  end if;
  return v_told;
end
$$;
