-- compatible_from: 1
--
-- Beginning a claim: alone under a lease, or joined in the caller's transaction.

-- Makes the claim, or returns in the same round trip why not, with the stored claim.
--
-- Locks: nothing at first, so that replays neither write nor wait. If there is no row, the primary key decides: the
-- insert of the second caller waits for the transaction of the first, and the loser reads again. A row that can be
-- taken (expired, released, or with an expired lease) is locked, judged again by the clock, and updated. Two callers
-- cannot both take it: the second gets the row lock later and finds a live lease. Explored in once.explore.test.ts.
--
-- Without `p_lease_ms` the claim is joined: it belongs to the current transaction.
create function {schema}.claim_begin(
  p_scope text, p_key text, p_id text, p_holder text, p_fingerprint text, p_lease_ms bigint, p_keep_ms bigint,
  p_wait_ms integer, p_hold_ambiguous boolean, p_max_lost integer, p_open_operation text, p_input json, p_gave_up_outcome json
)
  returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_claim {schema}.claim;
  v_fence bigint;
  v_holder text;
  v_now timestamptz;
  v_later timestamptz;
  v_left_ms bigint;
  v_lock boolean := false;
  v_is_over boolean;
  v_is_lost boolean;
  v_since timestamptz := pg_catalog.clock_timestamp();
begin
  perform {schema}.limit_lock_wait(p_wait_ms); -- guard: once.begin-wait-bound
  for v_try in 1..20 loop
    if v_try > 1 then
      -- Each try may have waited, so only the rest of the time is left.
      perform {schema}.limit_lock_wait(greatest(
        1, p_wait_ms - pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - v_since) * 1000)::integer);
    end if;
    if v_lock then
      -- point: before the lock
      select c.* into v_claim from {schema}.claim c where c.scope = p_scope and c.key = p_key for no key update; -- guard: once.begin-lock
    else
      -- point: before the read
      select c.* into v_claim from {schema}.claim c where c.scope = p_scope and c.key = p_key;
    end if;
    if not found then
      v_lock := false;
      v_now := {schema}.clock();
      -- point: before the insert
      insert into {schema}.claim as c
        (scope, key, id, holder, fence, lease_until, fingerprint, input, open_operation, created_at, expires_at)
      values
        (p_scope, p_key, p_id, coalesce(p_holder, 'tx:' || pg_catalog.pg_current_xact_id()::text),
         {schema}.next_fence(0, v_now),
         coalesce(v_now + p_lease_ms * interval '1 millisecond', '-infinity'), p_fingerprint, p_input, p_open_operation,
         v_now, case when p_lease_ms is null then v_now + p_keep_ms * interval '1 millisecond' end)
      on conflict do nothing
      returning c.fence, c.holder into v_fence, v_holder;
      -- Another caller was first. The next statement has a new snapshot and shows its row.
      continue when not found;
      if p_lease_ms is not null then
        v_later := {schema}.clock();
        if v_later >= v_now + interval '10 milliseconds' then
          -- The insert waited for a transaction that rolled back: the lease begins now.
          -- point: insert waited
          update {schema}.claim c set lease_until = v_later + p_lease_ms * interval '1 millisecond'
          where c.scope = p_scope and c.key = p_key;
          v_left_ms := p_lease_ms - ceil(pg_catalog.date_part('epoch', {schema}.clock() - v_later) * 1000);
        end if;
      end if;
      -- The fields of claim_result that a new claim has.
      return pg_catalog.json_build_object(
        'state', 'claimed', 'id', p_id, 'fence', v_fence, 'attempt', 1, 'holder', v_holder, 'leftMs', v_left_ms);
    end if;

    v_now := {schema}.clock(); -- guard: once.begin-clock
    v_is_over := coalesce(v_claim.expires_at <= v_now, false);
    v_is_lost := v_claim.lease_until > '-infinity';
    if not v_is_over then
      if v_claim.fingerprint <> p_fingerprint then -- guard: once.fingerprint
        return {schema}.claim_result('mismatch', v_claim, null);
      elsif v_claim.status <> 'pending' then -- guard: once.replay
        return {schema}.claim_result('replayed', v_claim, null);
      end if;
      -- A transaction gets its id when it first writes. Without an id it has no claim either.
      v_holder := coalesce(p_holder, 'tx:' || pg_catalog.pg_current_xact_id_if_assigned()::text, '');
      if v_claim.lease_until > v_now then -- guard: once.live-lease
        v_left_ms := greatest(1, floor(pg_catalog.date_part('epoch', v_claim.lease_until - v_now) * 1000));
        if v_claim.holder <> v_holder then -- guard: once.holder
          return {schema}.claim_result('in progress', v_claim, v_left_ms);
        end if;
        -- This call has made the claim before, and its answer was lost. The lease began then and does not begin again.
        return {schema}.claim_result(case when v_claim.lost > 0 then 'taken over' else 'claimed' end, v_claim, v_left_ms);
      elsif not v_is_lost and v_claim.holder = v_holder then
        -- A pending claim without a lease under the caller's name is a claim of this transaction.
        return {schema}.claim_result('nested', v_claim, null);
      elsif p_hold_ambiguous and v_is_lost then -- guard: once.hold
        return {schema}.claim_result('ambiguous', v_claim, null);
      end if;
    end if;
    if not v_lock then
      v_lock := true;
      continue;
    end if;

    v_holder := coalesce(p_holder, 'tx:' || pg_catalog.pg_current_xact_id()::text);
    if v_is_over then
      -- point: before the replacement
      update {schema}.claim c set
        id = p_id, holder = v_holder, status = 'pending', fence = {schema}.next_fence(c.fence, v_now), attempt = 1, -- guard: once.expired-fence
        lost = 0, lease_until = coalesce(v_now + p_lease_ms * interval '1 millisecond', '-infinity'),
        fingerprint = p_fingerprint, outcome = null, input = p_input, steps = '{}', last_error = null,
        open_operation = p_open_operation, created_at = v_now, completed_at = null,
        expires_at = case when p_lease_ms is null then v_now + p_keep_ms * interval '1 millisecond' end
      where c.scope = p_scope and c.key = p_key
      returning c.* into v_claim;
      return {schema}.claim_result('claimed', v_claim, null);
    elsif v_is_lost and v_claim.lost + 1 >= p_max_lost then -- guard: once.max-lost
      -- point: before the failure
      update {schema}.claim c set
        status = 'failed', fence = {schema}.next_fence(c.fence, v_now), lost = c.lost + 1, lease_until = null,
        outcome = p_gave_up_outcome, open_operation = null, completed_at = v_now,
        expires_at = v_now + p_keep_ms * interval '1 millisecond'
      where c.scope = p_scope and c.key = p_key
      returning c.* into v_claim;
      return {schema}.claim_result('gave up', v_claim, null);
    else
      -- point: before the takeover
      update {schema}.claim c set
        holder = v_holder, fence = {schema}.next_fence(c.fence, v_now), attempt = c.attempt + 1, -- guard: once.takeover-fence
        lost = c.lost + v_is_lost::integer,
        lease_until = coalesce(v_now + p_lease_ms * interval '1 millisecond', '-infinity'),
        fingerprint = coalesce(c.fingerprint, p_fingerprint), open_operation = p_open_operation,
        expires_at = case when p_lease_ms is null then v_now + p_keep_ms * interval '1 millisecond' end
      where c.scope = p_scope and c.key = p_key
      returning c.* into v_claim;
      return {schema}.claim_result(case when v_is_lost then 'taken over' else 'claimed' end, v_claim, null);
    end if;
  end loop;
  raise lock_not_available using message = 'the claim was made and forgotten twenty times meanwhile';
end
$$;

-- Runs claim_begin for a joined claim. A lock timeout must leave the caller's transaction usable, so each wait is in a
-- subtransaction, and the last one ends before `statement_timeout`.
--
-- The function waits in slices, because `lock_timeout` counts per holder, and an insert may wait for one holder after
-- another. The slices are counted as well as timed, because in a test `limit_lock_wait` takes no time.
--
-- Locks: as claim_begin. If another call holds the claim under a lease, the row lock is released again. Otherwise the
-- lock would block the holder's renewal until the caller's transaction ends. Explored in once.explore.test.ts.
create function {schema}.claim_begin_joined(
  p_scope text, p_key text, p_id text, p_fingerprint text, p_keep_ms bigint, p_wait_ms integer
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_result json;
  v_since timestamptz := pg_catalog.clock_timestamp();
  v_left_ms integer := {schema}.wait_below_statement_timeout(p_wait_ms);
begin
  for v_slice in 1..ceil(v_left_ms / 100.0)::integer loop
    begin
      v_result := {schema}.claim_begin(
        p_scope, p_key, p_id, null, p_fingerprint, null, p_keep_ms, least(v_left_ms, 100), true, null, null, null, null);
      if v_result ->> 'state' = 'in progress' then -- guard: once.begin-no-lock-kept
        raise lock_not_available;
      end if;
      return v_result;
    exception when lock_not_available then -- guard: once.begin-busy
      if v_result is not null then
        return v_result;
      end if;
    end;
    v_left_ms := v_left_ms - pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - v_since) * 1000;
    v_since := pg_catalog.clock_timestamp();
    exit when v_left_ms <= 0;
  end loop;
  return '{"state": "busy"}';
end
$$;

-- Runs claim_begin_joined and announces the claim. A joined claim is invisible before it commits. Without an
-- announcement, a caller that must not wait could not learn that the key belongs to another request.
--
-- Locks: as claim_begin, then two advisory locks that end with the transaction. The claimant takes the first for the
-- key with this fingerprint, and the second for the key. It never waits for them: without an announcement, the claim
-- counts as the same request.
--
-- A caller that finds the key taken tries both locks in the same order, but shared, and keeps them. If it gets the
-- first, no claim with its own fingerprint is announced, now or later. If it then cannot get the second, a claim is
-- announced, and that claim is another request, whatever has ended or begun in between. Two keys with the same 64-bit
-- hash would count as one. Explored in once.explore.test.ts.
create function {schema}.claim_begin_announced(
  p_scope text, p_key text, p_id text, p_fingerprint text, p_keep_ms bigint, p_wait_ms integer
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_result json := {schema}.claim_begin_joined(p_scope, p_key, p_id, p_fingerprint, p_keep_ms, p_wait_ms);
  -- The first characters are enough, and an outcome may be long.
  v_state text := pg_catalog.substring(pg_catalog.left(v_result::text, 40), '^{"state" ?: "([a-z ]+)"');
  -- Advisory locks belong to the whole database. No two schemas, scopes and keys make the same string.
  v_name text := '{schema}:' || pg_catalog.length(p_scope)::text || ':' || p_scope || p_key;
  v_key bigint := pg_catalog.hashtextextended(v_name, 0);
  v_request bigint := pg_catalog.hashtextextended(v_name || p_fingerprint, 1);
begin
  if v_state = 'claimed' then -- guard: http.announce
    -- point: before the announcement
    if pg_catalog.pg_try_advisory_xact_lock(v_request) then -- guard: once.announce-key
      -- point: between the announcements
      perform pg_catalog.pg_try_advisory_xact_lock(v_key);
    end if;
  elsif v_state = 'busy' then
    -- point: key is taken
    if pg_catalog.pg_try_advisory_xact_lock_shared(v_request) then
      -- point: between the shared locks
      if not pg_catalog.pg_try_advisory_xact_lock_shared(v_key) then
        return '{"state": "mismatch"}';
      end if;
    end if;
  end if;
  return v_result;
end
$$;
