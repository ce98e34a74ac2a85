-- compatible_from: 1
--
-- Calls of the holder of a claim: renew, record a step, store the outcome, release. Each call names its fence, so a
-- holder that lost its claim changes nothing.

-- Locks the row of a claim that has this fence. Returns `held`, `stored` (the claim has ended under this fence) or
-- `lost`. Alone, the function waits at most `p_wait_ms`. In the caller's transaction the row is its own, so it does not
-- wait.
create function {schema}.claim_lock(p_scope text, p_key text, p_fence bigint, p_wait_ms integer) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_is_pending boolean;
begin
  if p_wait_ms is not null then
    perform {schema}.limit_lock_wait(p_wait_ms);
  end if;
  -- point: before the lock
  select c.status = 'pending' into v_is_pending
  from {schema}.claim c where c.scope = p_scope and c.key = p_key and c.fence = p_fence for no key update; -- guard: once.lock-row, once.lock-fence
  return case when v_is_pending then 'held' when v_is_pending is null then 'lost' else 'stored' end;
end
$$;

-- Stores the outcome if the claim is still held under this fence. Otherwise the function changes nothing and returns
-- the stored claim, or raises an error if COMMIT follows in the same message (`p_must_hold`).
--
-- Locks: the row of the claim. The update compares the fence, so a holder that lost its claim cannot overwrite the
-- outcome. Where the update may have to wait, claim_lock runs first, so that the clock is read after the wait. Explored
-- in once.explore.test.ts.
create function {schema}.claim_store_outcome(
  p_scope text, p_key text, p_fence bigint, p_wait_ms integer, p_status {schema}.claim_status, p_outcome json,
  p_keep_ms bigint, p_must_hold boolean
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_claim {schema}.claim;
  v_completed_at timestamptz;
begin
  if p_wait_ms is not null then
    perform {schema}.claim_lock(p_scope, p_key, p_fence, p_wait_ms);
  end if;
  -- point: before the outcome
  update {schema}.claim c set
    status = p_status, outcome = p_outcome, lease_until = null, open_operation = null, completed_at = {schema}.clock(),
    -- The expiry stays while nine tenths of it lie ahead, which keeps the update HOT.
    expires_at = case
      when c.expires_at > {schema}.clock() + p_keep_ms * interval '0.9 milliseconds' then c.expires_at
      else {schema}.clock() + p_keep_ms * interval '1 millisecond'
    end
  where c.scope = p_scope and c.key = p_key and c.fence = p_fence and c.status = 'pending' -- guard: once.finish-pending
  returning c.completed_at into v_completed_at;
  if not found then
    -- point: before the read
    select c.* into v_claim from {schema}.claim c where c.scope = p_scope and c.key = p_key;
    if v_claim.fence is distinct from p_fence then
      if p_must_hold then -- guard: once.finish-must
        raise exception 'the claim is not held any more' using errcode = 'DIB01';
      end if;
      return {schema}.claim_result('lost', v_claim, null);
    end if;
    -- An earlier call with the same fence has stored the outcome, and its answer was lost.
    v_completed_at := v_claim.completed_at;
  end if;
  return pg_catalog.json_build_object('state', 'stored', 'completedAt', {schema}.micros(v_completed_at));
end
$$;

-- Extends the lease if the claim is still held under this fence. Locks: the row of the claim, before the function reads
-- the clock. Explored in once.explore.test.ts.
create function {schema}.claim_renew(
  p_scope text, p_key text, p_fence bigint, p_wait_ms integer, p_lease_ms bigint, out state text
)
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz;
begin
  state := {schema}.claim_lock(p_scope, p_key, p_fence, p_wait_ms);
  if state <> 'held' then -- guard: once.renew-lost
    return;
  end if;
  v_now := {schema}.clock();
  -- point: before the renewal
  update {schema}.claim c set lease_until = v_now + p_lease_ms * interval '1 millisecond'
  where c.scope = p_scope and c.key = p_key;
end
$$;

-- Records a recovery point if the claim is still held under this fence. Locks: the row of the claim.
create function {schema}.claim_record_step(
  p_scope text, p_key text, p_fence bigint, p_wait_ms integer, p_step text, p_value text, out state text
)
  language plpgsql volatile
  set search_path = ''
as $$
begin
  state := {schema}.claim_lock(p_scope, p_key, p_fence, p_wait_ms);
  if state <> 'held' then -- guard: once.step-lost
    return;
  end if;
  -- point: before the step
  update {schema}.claim c set steps = c.steps || pg_catalog.jsonb_build_object(p_step, p_value)
  where c.scope = p_scope and c.key = p_key;
end
$$;

-- Ends an attempt without an outcome, if the claim is still held under this fence. With `p_rest_ms`, the lease expires
-- after that time (0: now), because the effect of the attempt is unknown, or another attempt will continue it. Without
-- it, the claim is released: the next caller begins at once, and nothing is ambiguous. `p_is_void`: the attempt has not
-- begun its work. The attempt before it is then the one without a recorded outcome, and is not counted twice.
--
-- Locks: the row of the claim. The release raises the fence, so later writes of this attempt change nothing. Explored
-- in once.explore.test.ts.
create function {schema}.claim_release(
  p_scope text, p_key text, p_fence bigint, p_wait_ms integer, p_rest_ms bigint, p_keep_ms bigint, p_error json,
  p_is_void boolean, out state text
)
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz;
begin
  state := {schema}.claim_lock(p_scope, p_key, p_fence, p_wait_ms);
  if state <> 'held' then -- guard: once.end-lost
    return;
  end if;
  v_now := {schema}.clock();
  -- point: before the release
  update {schema}.claim c set
    fence = {schema}.next_fence(c.fence, v_now), holder = 'nobody', last_error = coalesce(p_error, c.last_error),
    lost = case when p_is_void then greatest(0, c.lost - 1) else c.lost end,
    lease_until = coalesce(v_now + p_rest_ms * interval '1 millisecond', '-infinity'),
    open_operation = case when p_rest_ms is null then null else c.open_operation end,
    -- A slot under a lease is kept until the end of its period.
    expires_at = case when p_rest_ms is null then v_now + p_keep_ms * interval '1 millisecond'
      when c.scope like '::%' then c.expires_at end
  where c.scope = p_scope and c.key = p_key;
end
$$;
