-- compatible_from: 1
--
-- Singletons: one claim per period. The slot of a period is an ordinary claim, in the scope `::` and the name.

-- Claims the slot of the current period, unless another call has claimed it. The slot is an ordinary claim. Locks: as
-- claim_begin. Two callers cannot both win for the same reason. Explored in singleton.explore.test.ts.
create function {schema}.singleton_take(p_item json, p_holder text, p_lease_ms bigint, p_wait_ms integer) returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz := {schema}.clock();
  v_scope text := p_item ->> 'scope';
  v_period record;
  v_keep_until timestamptz;
  v_keep_ms bigint;
  v_result json;
  v_state text;
  v_claim {schema}.claim;
begin
  select * into v_period from {schema}.period_at(p_item -> 'per', v_now);
  if v_period.slot is null then
    return pg_catalog.json_build_object(
      'granted', false, 'isBusy', false, 'isFinal', false, 'state', 'no slot', 'now', {schema}.micros(v_now));
  end if;
  -- A slot is kept until its end, and for `keepMs` after it.
  v_keep_until := v_period.ends_at + (p_item ->> 'keepMs')::bigint * interval '1 millisecond';
  v_keep_ms := ceil(pg_catalog.date_part('epoch', v_keep_until - v_now) * 1000)::bigint;
  if p_lease_ms is null then
    v_result := {schema}.claim_begin_joined(v_scope, v_period.slot, p_item ->> 'id', null, v_keep_ms, p_wait_ms);
  else
    begin
      v_result := {schema}.claim_begin(
        v_scope, v_period.slot, p_item ->> 'id', p_holder, null, p_lease_ms, v_keep_ms, p_wait_ms,
        (p_item ->> 'hold')::boolean, (p_item ->> 'maxLost')::integer, null, null, p_item -> 'gaveUp'); -- guard: acquire.singleton-max-lost
    exception when lock_not_available then
      v_result := '{"state": "busy"}';
    end;
  end if;
  v_state := v_result ->> 'state';
  if v_state in ('claimed', 'taken over') and v_period.ends_at <= {schema}.clock() then
    -- The call waited until its period was over. The caller undoes the refused claim and asks again.
    v_state := 'busy';
  end if;
  if v_state in ('claimed', 'taken over') then
    -- point: before the record of the holder
    update {schema}.claim c
    -- After a takeover the new caller has the slot from now on, although the row is older. The row expires one day, even
    -- if no call ends the slot.
    set input = pg_catalog.json_build_object(
        'by', p_item -> 'by', 'since', {schema}.micros({schema}.clock())),
      expires_at = v_keep_until
    where c.scope = v_scope and c.key = v_period.slot
    returning c.* into v_claim;
  elsif v_state <> 'busy' then
    -- point: before the read
    select c.* into v_claim from {schema}.claim c where c.scope = v_scope and c.key = v_period.slot;
  end if;
  return pg_catalog.json_build_object(
    'granted', v_state in ('claimed', 'taken over'), 'isBusy', v_state = 'busy',
    'isFinal', v_state in ('replayed', 'gave up'), 'state', v_state, 'claim', v_result,
    'slot', pg_catalog.json_build_object('key', v_period.slot, 'startsAt', {schema}.micros(v_period.starts_at),
      'endsAt', {schema}.micros(v_period.ends_at)),
    'keepMs', v_keep_ms, 'by', v_claim.input -> 'by', 'since', v_claim.input -> 'since');
end
$$;

-- Marks slots as failed that have used up their lost attempts. The refusal of the whole call has undone this mark, and
-- it must be visible. A slot that is in another state by now is not marked. Locks: as singleton_take, with short waits.
create function {schema}.singleton_mark_given_up(p_items json, p_results json, p_holder text, p_lease_ms bigint) returns void
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_item json;
begin
  for v_item in
    select i.value from pg_catalog.json_array_elements(p_items) with ordinality i
    where p_results -> (i.ordinality - 1)::integer ->> 'state' = 'gave up'
  loop
    begin
      if {schema}.singleton_take(v_item, p_holder, p_lease_ms, 10) ->> 'state' <> 'gave up' then
        raise exception 'it is held again' using errcode = 'DIB02';
      end if;
    exception when sqlstate 'DIB02' then
      null;
    end;
  end loop;
end
$$;

-- Voids the work of a slot, once. The caller names the claim by its id. The function deletes the slot (`p_frees`), or
-- marks it as void, so that it stays taken. Later calls find it absent, or void.
--
-- Locks: the row of the claim. Two calls cannot both void it: the second locks the row later and finds it deleted or
-- void. A call that changes nothing leaves no lock behind in the caller's transaction. Explored in
-- singleton.explore.test.ts.
create function {schema}.singleton_void(
  p_scope text, p_key text, p_id text, p_frees boolean, p_void_outcome json, p_wait_ms integer
)
  returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_claim {schema}.claim;
  v_now timestamptz;
  v_result json;
begin
  begin
    perform {schema}.limit_lock_wait({schema}.wait_below_statement_timeout(p_wait_ms));
    -- point: before the lock
    select c.* into v_claim from {schema}.claim c where c.scope = p_scope and c.key = p_key for update; -- guard: acquire.void-lock
    v_now := {schema}.clock();
    if v_claim.key is null or v_claim.id <> p_id or v_claim.expires_at <= v_now
      or v_claim.status = 'pending' and v_claim.holder = 'nobody' then
      v_result := '{"state": "absent"}';
    elsif v_claim.status = 'pending' then
      v_result := {schema}.claim_result('in progress', v_claim, case when v_claim.lease_until > v_now
        then ceil(pg_catalog.date_part('epoch', v_claim.lease_until - v_now) * 1000)::bigint end);
    elsif v_claim.status = 'failed' and v_claim.outcome ->> 'name' = p_void_outcome ->> 'name' then -- guard: acquire.void-twice
      v_result := {schema}.claim_result('void', v_claim, null);
    elsif p_frees then
      -- point: before the removal
      delete from {schema}.claim c where c.scope = p_scope and c.key = p_key;
    else
      -- point: before the mark
      update {schema}.claim c set status = 'failed', outcome = p_void_outcome, fence = {schema}.next_fence(c.fence, v_now)
      where c.scope = p_scope and c.key = p_key;
    end if;
    if v_result is not null then
      raise exception 'nothing to void' using errcode = 'DIB02';
    end if;
  exception
    when sqlstate 'DIB02' then
      return v_result;
    when lock_not_available then
      return '{"state": "busy"}';
  end;
  return {schema}.claim_result('voided', v_claim, null);
end
$$;
