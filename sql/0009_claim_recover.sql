-- compatible_from: 1
--
-- Changes of a claim by others than its holder: a takeover, an operator's decision, and the deletion of expired claims.

-- Takes over the claims of one operation whose leases have expired.
--
-- Locks: the rows of those claims, in the order of their keys. The function skips locked rows, because another caller
-- is deciding about them, so it never waits. Two callers cannot both take over a claim: the second skips its row, or
-- rereads it under the lock and finds a live lease. The clock may be read before the lock, because a lease that had
-- expired then has expired now. Explored in once.explore.test.ts.
create function {schema}.claim_take_over(
  p_open_operation text, p_holder text, p_lease_ms bigint, p_keep_ms bigint, p_max_lost integer, p_gave_up_outcome json,
  p_limit integer
)
  returns table (result json, input json)
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz := {schema}.clock();
begin
  -- point: before the takeover
  return query
    with abandoned as materialized (
      select c.scope, c.key, c.lost + 1 >= p_max_lost as is_last
      from {schema}.claim c
      where c.open_operation = p_open_operation and c.lease_until <= v_now -- guard: once.recover-live-lease
      order by c.scope, c.key
      limit p_limit
      for no key update skip locked -- guard: once.recover-skip-locked
    )
    update {schema}.claim c set
      holder = p_holder, fence = {schema}.next_fence(c.fence, v_now), lost = c.lost + 1, -- guard: once.recover-fence
      attempt = case when is_last then c.attempt else c.attempt + 1 end,
      status = case when is_last then 'failed' else 'pending' end::{schema}.claim_status,
      lease_until = case when is_last then null else v_now + p_lease_ms * interval '1 millisecond' end,
      outcome = case when is_last then p_gave_up_outcome end,
      open_operation = case when is_last then null else c.open_operation end,
      completed_at = case when is_last then v_now end,
      expires_at = case when is_last then v_now + p_keep_ms * interval '1 millisecond' else c.expires_at end
    from abandoned a
    where c.scope = a.scope and c.key = a.key
    returning {schema}.claim_result(case when is_last then 'gave up' else 'taken over' end, c, null), c.input;
end
$$;

-- Applies an operator's decision to a claim that nobody works on: `forget` deletes it, `done` stores `p_outcome`, and
-- after `retry` the next caller begins at once. A held claim is left alone, because its holder would work in vain,
-- unless `p_force` is set.
--
-- Locks: the row of the claim. The decision raises the fence, so later writes of an earlier attempt change nothing.
create function {schema}.claim_override(
  p_scope text, p_key text, p_action text, p_outcome json, p_keep_ms bigint, p_force boolean
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz;
  v_claim {schema}.claim;
begin
  perform {schema}.limit_lock_wait(5000); -- guard: once.decide-bound
  -- point: before the lock
  select c.* into v_claim from {schema}.claim c where c.scope = p_scope and c.key = p_key for update;
  v_now := {schema}.clock();
  if v_claim.key is null or v_claim.expires_at <= v_now then
    return '{"state": "absent"}';
  elsif v_claim.lease_until > v_now and v_claim.holder <> 'nobody' and not p_force then
    return {schema}.claim_result(
      'in progress', v_claim, ceil(pg_catalog.date_part('epoch', v_claim.lease_until - v_now) * 1000)::bigint);
  elsif p_action = 'forget' then
    -- point: before the removal
    delete from {schema}.claim c where c.scope = p_scope and c.key = p_key;
  elsif v_claim.status <> 'pending' then
    return {schema}.claim_result('over', v_claim, null);
  else
    -- point: before the decision
    update {schema}.claim c set
      fence = {schema}.next_fence(c.fence, v_now), holder = 'nobody', open_operation = null, outcome = p_outcome,
      status = case p_action when 'retry' then 'pending' else 'active' end::{schema}.claim_status,
      lease_until = case p_action when 'retry' then '-infinity'::timestamptz end,
      completed_at = case p_action when 'retry' then null else v_now end,
      -- A slot stays taken for its period at least, whatever the decision.
      expires_at = case when c.scope like '::%' then greatest(c.expires_at, v_now + p_keep_ms * interval '1 millisecond')
        else v_now + p_keep_ms * interval '1 millisecond' end
    where c.scope = p_scope and c.key = p_key;
  end if;
  return '{"state": "done"}';
end
$$;

-- Deletes a batch of expired claims that nobody works on. A claim with a live lease stays, because work on a slot may
-- continue after the slot has expired.
--
-- Locks: those rows. The function skips locked rows, which are being claimed again, so it never waits. The array is
-- needed because a plan may run a joined subquery with a limit more than once. Explored in once.explore.test.ts.
create function {schema}.claim_delete_expired(p_limit integer) returns integer
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz := {schema}.clock();
  v_count integer;
begin
  -- point: before the removal
  delete from {schema}.claim c where c.ctid = any (array(
    select e.ctid from {schema}.claim e where e.expires_at <= v_now and (e.lease_until > v_now) is not true
    order by e.expires_at limit p_limit
    for update skip locked)); -- guard: once.forget-lock
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
