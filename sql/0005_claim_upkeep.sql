-- compatible_from: 1
--
-- What others than its holder do to a claim: take it over, decide about it, and forget it.

-- Takes over what processes that are gone have left of an operation. Never waits: what is locked is being looked at by
-- another. The clock may be read before the lock, since what had run out then has run out now.
create function {schema}.claim_take_over(
  p_unfinished text, p_holder text, p_lease_ms bigint, p_keep_ms bigint, p_max_lost integer, p_gave_up json,
  p_limit integer
)
  returns table (told json, input json)
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
      where c.unfinished = p_unfinished and c.lease_until <= v_now
      order by c.scope, c.key
      limit p_limit
      for no key update skip locked
    )
    update {schema}.claim c set
      holder = p_holder, fence = {schema}.next_fence(c.fence, v_now), lost = c.lost + 1,
      attempt = case when is_last then c.attempt else c.attempt + 1 end,
      status = case when is_last then 'failed' else 'pending' end::{schema}.claim_status,
      lease_until = case when is_last then null else v_now + p_lease_ms * interval '1 millisecond' end,
      outcome = case when is_last then p_gave_up end,
      unfinished = case when is_last then null else c.unfinished end,
      completed_at = case when is_last then v_now end,
      expires_at = case when is_last then v_now + p_keep_ms * interval '1 millisecond' else c.expires_at end
    from abandoned a
    where c.scope = a.scope and c.key = a.key
    returning {schema}.claim_told(case when is_last then 'gave up' else 'taken over' end, c, null), c.input;
end
$$;

-- Removes a batch of claims whose time is over, and on which nobody works: a slot may be worked on beyond it. Never waits: what is locked is being claimed anew. An array, since a plan
-- may run a joined subquery with a limit more than once.
create function {schema}.claim_forget_expired(p_limit integer) returns integer
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
    for update skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end
$$;

-- What an operator decides about a claim on which nobody works: to forget it, that it was done (`p_outcome`), or that it was
-- not (`retry`: whoever comes next begins at once). One that is held is left alone, unless it is to be forgotten by force,
-- since its holder would work for nothing.
create function {schema}.claim_decide(
  p_scope text, p_key text, p_what text, p_outcome json, p_keep_ms bigint, p_force boolean
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz;
  v_claim {schema}.claim;
begin
  perform {schema}.bound(5000);
  -- point: before the lock
  select c.* into v_claim from {schema}.claim c where c.scope = p_scope and c.key = p_key for update;
  v_now := {schema}.clock();
  if v_claim.key is null or v_claim.expires_at <= v_now then
    return '{"state": "absent"}';
  elsif v_claim.lease_until > v_now and v_claim.holder <> 'nobody' and not p_force then
    return {schema}.claim_told(
      'in progress', v_claim, ceil(pg_catalog.date_part('epoch', v_claim.lease_until - v_now) * 1000)::bigint);
  elsif p_what = 'forget' then
    -- point: before the removal
    delete from {schema}.claim c where c.scope = p_scope and c.key = p_key;
  elsif v_claim.status <> 'pending' then
    return {schema}.claim_told('over', v_claim, null);
  else
    -- point: before the decision
    update {schema}.claim c set
      fence = {schema}.next_fence(c.fence, v_now), holder = 'nobody', unfinished = null, outcome = p_outcome,
      status = case p_what when 'retry' then 'pending' else 'active' end::{schema}.claim_status,
      lease_until = case p_what when 'retry' then '-infinity'::timestamptz end,
      completed_at = case p_what when 'retry' then null else v_now end,
      -- A slot stays taken for its period at least, whatever is decided about it.
      expires_at = case when c.scope like '::%' then greatest(c.expires_at, v_now + p_keep_ms * interval '1 millisecond')
        else v_now + p_keep_ms * interval '1 millisecond' end
    where c.scope = p_scope and c.key = p_key;
  end if;
  return '{"state": "done"}';
end
$$;
