-- compatible_from: 1
--
-- Claims of different kinds, all of them or none. Only the first claim may wait: `once`, or else the first item. So a
-- caller that waits holds nothing that another could be waiting for, and no two callers can wait for each other. The
-- other claims follow in the given order, which is the same for every caller, and are refused at once if another call
-- holds them.

-- Makes one claim and returns its result. `isFinal`: a new request will not help. `isBusy`: another transaction is
-- about to decide, so ask again within the waiting time; never for a lock. `p_is_known`: an earlier call has made the claim, and its answer was lost. `p_is_refused`: another
-- claim of the call was refused, so what this one takes is undone. Locks: as the function of that kind of claim.
create function {schema}.acquire_one(
  p_item json, p_id text, p_holder text, p_lease_ms bigint, p_wait_ms integer, p_is_known boolean, p_is_refused boolean
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_kind text := p_item ->> 'kind';
  v_result json;
  v_take json;
  v_state text;
begin
  case v_kind
  when 'singleton' then
    return {schema}.singleton_take(p_item, p_holder, p_lease_ms, p_wait_ms);
  when 'quota' then
    v_result := {schema}.quota_take_no_wait(
      p_item ->> 'name', p_item ->> 'subject', (p_item ->> 'limit')::bigint, p_item -> 'per',
      array[(p_item ->> 'amount')::bigint], array[p_id], p_lease_ms, (p_item ->> 'keepMs')::bigint, p_holder,
      least(p_wait_ms, 10));
    v_take := v_result -> 'takes' -> 0;
    v_state := coalesce(v_take ->> 'state', v_result ->> 'state');
    if v_state in ('known', 'mismatch') and p_lease_ms is not null then
      -- Reserved by an attempt without a recorded outcome. This attempt continues the reservation. If it has ended, this
      -- attempt reserves the amount anew.
      v_result := {schema}.quota_resume_hold(p_item, p_id, p_holder, p_lease_ms, v_result, p_wait_ms);
      v_take := v_result -> 'takes' -> 0;
      v_state := coalesce(v_take ->> 'state', v_result ->> 'state');
    end if;
    if v_state = 'known' and v_take ->> 'entry' not in ('held', 'taken') then
      -- A reservation that was voided or refunded is not taken again under the same id.
      v_state := 'ended';
    end if;
    return pg_catalog.json_build_object(
      'granted', v_state in ('taken', 'known'), 'isBusy', v_state = 'busy', 'isFinal', false, 'state', v_state,
      'id', p_id, 'row', v_result -> 'row', 'take', v_take);
  when 'rate' then
    if p_is_known then
      return pg_catalog.json_build_object(
        'granted', true, 'isBusy', false, 'isFinal', false, 'state', 'decided', 'take', {schema}.rate_peek(
          p_item ->> 'name', p_item ->> 'subject', p_item ->> 'rule', p_item ->> 'algorithm',
          (p_item ->> 'limit')::bigint, (p_item ->> 'perUs')::bigint, (p_item ->> 'burst')::bigint) -> 0);
    end if;
    v_result := {schema}.rate_take(
      p_item ->> 'name', p_item ->> 'subject', p_item ->> 'rule', p_item ->> 'algorithm', (p_item ->> 'limit')::bigint,
      (p_item ->> 'perUs')::bigint, (p_item ->> 'burst')::bigint, array[(p_item ->> 'cost')::bigint], 0);
    if pg_catalog.json_typeof(v_result) = 'object' then
      return '{"granted": false, "isBusy": true, "isFinal": false, "state": "busy"}';
    end if;
    v_take := v_result -> 0;
    return pg_catalog.json_build_object(
      'granted', (v_take ->> 'granted')::boolean, 'isBusy', false, 'isFinal', false, 'state', 'decided', 'take', v_take); -- guard: acquire.one-rate
  when 'lock' then
    if p_is_refused then
      return {schema}.acquire_peek_lock(p_item ->> 'name', 0);
    end if;
    v_result := {schema}.acquire_take_lock(p_item ->> 'name', 0, p_holder, p_lease_ms);
    v_state := v_result ->> 'state';
    return pg_catalog.json_build_object(
      'granted', v_state = 'taken', 'isBusy', false, 'isFinal', false, 'state', v_state, 'lock', v_result); -- guard: acquire.one-lock-held
  else
    raise exception 'acquire_one: unknown kind of claim "%"', v_kind using errcode = 'invalid_parameter_value';
  end case;
end
$$;

-- For expressions, which cannot raise an error themselves.
create function {schema}.acquire_raise_unknown_kind(p_kind text) returns boolean
  language plpgsql immutable
  set search_path = ''
as $$
begin
  raise exception 'acquire: unknown kind of claim "%"', p_kind using errcode = 'invalid_parameter_value';
end
$$;

-- Whether a leased call has made its claims before, and its answer was lost. One claim that belongs to the call shows that
-- all of them do. A rate limit shows nothing, because it does not record its callers.
create function {schema}.acquire_is_repeat(p_once json, p_items json, p_holder text) returns boolean
  language plpgsql stable
  set search_path = ''
as $$
begin
  return exists (
    select from {schema}.claim c
    where c.scope = p_once ->> 'scope' and c.key = p_once ->> 'key' and c.holder = p_holder and c.status = 'pending'
  ) or exists (
    select from pg_catalog.json_array_elements(p_items) i
    where case i.value ->> 'kind'
      when 'singleton' then exists (
        select from {schema}.claim c
        where c.scope = i.value ->> 'scope' and c.holder = p_holder and c.status = 'pending')
      when 'quota' then exists (
        select from {schema}.quota_entry e
        where e.name = i.value ->> 'name' and e.subject = i.value ->> 'subject' and e.state = 'held'
          and e.holder = p_holder)
      when 'lock' then exists (
        select from {schema}.lock l
        where l.name = i.value ->> 'name' and l.holder = p_holder and l.expires_at > '-infinity')
      when 'rate' then false
      else {schema}.acquire_raise_unknown_kind(i.value ->> 'kind')
    end
  );
end
$$;

-- Makes all claims, or returns for each what prevents it.
--
-- Locks: the rows of the claims, in the given order, which is the same for every caller. Two calls cannot both win a
-- claim: the function of its kind decides that under its row lock. A refusal undoes everything here, so that no lock
-- stays behind in a caller's transaction. A final refusal is the outcome of `once`, and stays. `p_is_repeat`: a leased
-- call was sent before and may have arrived. Explored in acquire.explore.test.ts.
create function {schema}.acquire(
  p_once json, p_items json, p_holder text, p_lease_ms bigint, p_wait_ms integer, p_is_repeat boolean default false
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_once json;
  v_item json;
  v_one json;
  v_from timestamptz;
  v_results json[] := '{}';
  v_is_refused boolean := false;
  v_is_final boolean := false;
  v_is_undecidable boolean := false;
  v_is_known boolean := p_lease_ms is not null and p_is_repeat
    and {schema}.acquire_is_repeat(p_once, p_items, p_holder);
begin
  begin
    if p_once is not null then
      if p_lease_ms is null then
        v_once := {schema}.claim_begin_joined(
          p_once ->> 'scope', p_once ->> 'key', p_once ->> 'id', p_once ->> 'fingerprint',
          (p_once ->> 'keepMs')::bigint, (p_once ->> 'waitMs')::integer);
      else
        v_once := {schema}.claim_begin(
          p_once ->> 'scope', p_once ->> 'key', p_once ->> 'id', p_holder, p_once ->> 'fingerprint', p_lease_ms,
          (p_once ->> 'keepMs')::bigint, (p_once ->> 'waitMs')::integer, (p_once ->> 'hold')::boolean,
          (p_once ->> 'maxLost')::integer, null, null, p_once -> 'gaveUp');
      end if;
      if v_once ->> 'state' not in ('claimed', 'taken over') then -- guard: acquire.replay
        return pg_catalog.json_build_object('state', 'once', 'once', v_once);
      end if;
    end if;
    v_from := pg_catalog.clock_timestamp();
    begin
      for v_item in select i.value from pg_catalog.json_array_elements(p_items) i loop
        v_one := {schema}.acquire_one(
          v_item,
          -- A reservation has the same id in every attempt, whatever the order of the items.
          coalesce(v_item ->> 'id', case when p_lease_ms is not null
            then coalesce(v_once ->> 'id', p_holder) || ':' || pg_catalog.cardinality(v_results) end),
          p_holder, p_lease_ms,
          case when p_once is null and pg_catalog.cardinality(v_results) = 0 then p_wait_ms
            -- The call is refused already, so a further wait would be in vain.
            when v_is_refused then 1 else 10 end,
          v_is_known, v_is_refused);
        if p_once is null and pg_catalog.cardinality(v_results) = 0
          and (p_lease_ms is null or v_one -> 'claim' ->> 'leftMs' is not null) then
          -- `tookMs` is the time of the other claims. A lease that began after a wait has its own age.
          v_from := pg_catalog.clock_timestamp();
        end if;
        v_results := v_results || v_one;
        v_is_refused := v_is_refused or not (v_one ->> 'granted')::boolean;
        v_is_final := v_is_final or (v_one ->> 'isFinal')::boolean;
        -- The request cannot be decided: there is no slot to claim, or this transaction has made the claim.
        v_is_undecidable := v_is_undecidable or v_one ->> 'state' in ('no slot', 'nested');
      end loop;
      v_is_final := v_is_final and not v_is_undecidable;
      -- guard: acquire.all-or-nothing {
      if v_is_refused then
        raise exception 'refused' using errcode = 'DIB02';
      end if;
      -- guard: acquire.all-or-nothing }
    exception when sqlstate 'DIB02' then
      null;
    end;
    if v_is_refused and p_once is not null then
      if not v_is_final then
        raise exception 'refused' using errcode = 'DIB02';
      end if;
      perform {schema}.claim_store_outcome(
        p_once ->> 'scope', p_once ->> 'key', (v_once ->> 'fence')::bigint, null, 'failed',
        pg_catalog.json_build_object(
          'name', 'AcquireRefusedError', 'message', 'What was claimed together was refused for good.',
          'fields', pg_catalog.json_build_object('items', p_items, 'results', (
            -- Long outcomes of other calls are left out, because they would be stored again for each key.
            select pg_catalog.json_agg(case when pg_catalog.octet_length(r.one::text) > 10000
              then (r.one::jsonb #- '{claim,outcome}' #- '{claim,hasOutcome}')::json else r.one end order by r.place)
            from pg_catalog.unnest(v_results) with ordinality r (one, place)))),
        (p_once ->> 'keepMs')::bigint, true);
    end if;
  exception when sqlstate 'DIB02' then
    null;
  end;
  if v_is_refused then
    perform {schema}.singleton_mark_given_up(p_items, pg_catalog.array_to_json(v_results), p_holder, p_lease_ms);
  end if;
  return pg_catalog.json_build_object(
    'state', case when v_is_refused then 'refused' else 'granted' end, 'isFinal', v_is_final, 'once', v_once,
    'results', pg_catalog.array_to_json(v_results),
    'tookMs', ceil(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - v_from) * 1000));
end
$$;

-- Returns whether a claim or a lock is among the grants, whose fence shows if it is still held.
create function {schema}.acquire_has_fence(p_grants json) returns boolean
  language sql immutable
as $$
  select exists (select from pg_catalog.json_array_elements(p_grants) g where g.value ->> 'fence' is not null)
$$;

-- Returns `held` if each grant is still held under its fence, `lost` if one is not, or `stored`: an earlier call has
-- ended them, and its answer was lost. Locks: the rows of claims and locks, in the order in which they were claimed.
-- Explored in acquire.explore.test.ts.
create function {schema}.acquire_check(p_grants json, p_holder text) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_grant json;
  v_state text;
  v_is_stored boolean := false;
  v_is_lost boolean := false;
begin
  for v_grant in select g.value from pg_catalog.json_array_elements(p_grants) g loop
    case v_grant ->> 'kind'
    when 'claim' then
      v_state := {schema}.claim_lock(v_grant ->> 'scope', v_grant ->> 'key', (v_grant ->> 'fence')::bigint, null); -- guard: acquire.state-claims
    when 'lock' then
      v_state := {schema}.acquire_check_lock(v_grant ->> 'name', 0, p_holder, (v_grant ->> 'fence')::bigint); -- guard: acquire.state-locks
    when 'hold', 'take', 'rate' then
      v_state := 'held';
    else
      raise exception 'acquire_check: unknown kind of grant "%"', v_grant ->> 'kind' using errcode = 'invalid_parameter_value';
    end case;
    -- All grants end together: one that has ended shows that the others have, even if a lock is another's by now.
    v_is_stored := v_is_stored or v_state in ('stored', 'released');
    v_is_lost := v_is_lost or v_state = 'lost';
  end loop;
  return case when v_is_stored then 'stored' when v_is_lost then 'lost' else 'held' end;
end
$$;

-- Returns whether a reservation shows that this call has ended. A lock does not show it once another call has it. A
-- claim shows it by itself. Locks nothing.
create function {schema}.acquire_was_charged(p_grants json, p_holder text) returns boolean
  language sql stable
as $$
  select not exists (select from pg_catalog.json_array_elements(p_grants) g where g.value ->> 'kind' = 'claim')
    and exists (
      select from pg_catalog.json_array_elements(p_grants) g
      join {schema}.quota_entry e on e.name = g.value ->> 'name' and e.id = g.value ->> 'id'
      where g.value ->> 'kind' = 'hold' and e.holder = p_holder and (e.is_done or e.state = 'taken'))
$$;

-- Ends all grants, if all are still held. Claims get their status (without one they are released), reservations are
-- used or voided, locks are released. The function ends all or none, except that reservations may be left for a later
-- call (`unsettled`), so that the outcome is stored.
--
-- Locks: as acquire_check, then the reservations. Two ends cannot both count: the second finds other fences, or claims
-- that have ended. Explored in acquire.explore.test.ts.
create function {schema}.acquire_end(p_grants json, p_holder text, p_is_done boolean, p_wait_ms integer, p_must_hold boolean)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_grant json;
  v_state text;
  v_result json;
  v_completed_at json;
  v_hold text;
  v_unsettled json[] := '{}';
  v_is_lost boolean := false;
begin
  if p_wait_ms is not null then
    perform {schema}.limit_lock_wait(p_wait_ms);
  end if;
  v_state := {schema}.acquire_check(p_grants, p_holder);
  if v_state = 'lost' and p_is_done and {schema}.acquire_was_charged(p_grants, p_holder) then
    v_state := 'stored';
  end if;
  if v_state = 'lost' and p_must_hold then
    raise exception 'what was claimed is not held any more' using errcode = 'DIB01';
  elsif v_state = 'lost' then -- guard: acquire.end-lost
    return '{"state": "lost"}';
  end if;
  for v_grant in
    select g.value from pg_catalog.json_array_elements(p_grants) g
    where v_state = 'held' and g.value ->> 'kind' <> 'hold'
  loop
    case v_grant ->> 'kind'
    when 'claim' then
      if v_grant ->> 'status' is null then
        perform {schema}.claim_release(v_grant ->> 'scope', v_grant ->> 'key', (v_grant ->> 'fence')::bigint, null,
          (v_grant ->> 'restMs')::bigint, (v_grant ->> 'keepMs')::bigint, v_grant -> 'error', false);
      else
        v_result := {schema}.claim_store_outcome(v_grant ->> 'scope', v_grant ->> 'key', (v_grant ->> 'fence')::bigint, null,
          (v_grant ->> 'status')::{schema}.claim_status, (v_grant ->> 'outcome')::json, (v_grant ->> 'keepMs')::bigint, true);
        v_completed_at := coalesce(v_completed_at, v_result -> 'completedAt');
      end if;
    when 'lock' then
      perform {schema}.acquire_release_lock(v_grant ->> 'name', 0, p_holder, (v_grant ->> 'fence')::bigint);
    when 'take' then
      if not p_is_done then -- guard: acquire.untake
        perform {schema}.quota_undo_take(
          v_grant ->> 'name', v_grant ->> 'subject', (v_grant ->> 'amount')::bigint, v_grant ->> 'id');
      end if;
    when 'rate' then
      if not p_is_done then
        perform {schema}.rate_refund(v_grant ->> 'name', v_grant ->> 'subject', v_grant ->> 'rule',
          (v_grant ->> 'perUs')::bigint, (v_grant ->> 'cost')::bigint);
      end if;
    else
      raise exception 'acquire_end: unknown kind of grant "%"', v_grant ->> 'kind' using errcode = 'invalid_parameter_value';
    end case;
  end loop;
  -- point: before the reservations
  for v_grant in
    select g.value from pg_catalog.json_array_elements(p_grants) g where g.value ->> 'kind' = 'hold'
  loop
    v_hold := {schema}.quota_end_hold(v_grant, p_holder, p_is_done, null);
    if v_hold = 'unsettled' and p_is_done then
      v_unsettled := v_unsettled || v_grant;
    end if;
    v_is_lost := v_is_lost or v_hold = 'lost';
  end loop;
  return pg_catalog.json_build_object(
    -- The other grants have their own fences, and their outcome counts.
    'state', case when v_is_lost and not {schema}.acquire_has_fence(p_grants) then 'lost'
      when v_state = 'held' then 'ended' else v_state end,
    'completedAt', v_completed_at, 'unsettled', pg_catalog.array_to_json(v_unsettled));
end
$$;

-- Extends every lease, if all grants are still held. Locks: as acquire_check, then the entries of the reservations,
-- skipping locked ones. Explored in acquire.explore.test.ts.
create function {schema}.acquire_renew(p_grants json, p_holder text, p_lease_ms bigint, p_wait_ms integer) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_grant json;
  v_is_held boolean;
begin
  perform {schema}.limit_lock_wait(p_wait_ms);
  if {schema}.acquire_check(p_grants, p_holder) <> 'held' then -- guard: acquire.renew-lost
    return 'lost';
  end if;
  for v_grant in select g.value from pg_catalog.json_array_elements(p_grants) g loop
    case v_grant ->> 'kind'
    when 'claim' then
      perform {schema}.claim_renew( -- guard: acquire.renew-claims
        v_grant ->> 'scope', v_grant ->> 'key', (v_grant ->> 'fence')::bigint, p_wait_ms, p_lease_ms);
    when 'lock' then
      perform {schema}.acquire_renew_lock(v_grant ->> 'name', 0, p_holder, (v_grant ->> 'fence')::bigint, p_lease_ms); -- guard: acquire.renew-locks
    when 'hold' then
      -- point: before the reservation
      v_is_held := {schema}.quota_renew_hold(v_grant, p_holder, p_lease_ms); -- guard: acquire.renew-holds
      if not v_is_held and not {schema}.acquire_has_fence(p_grants) then
        return 'lost';
      end if;
    when 'take', 'rate' then
      null;
    else
      raise exception 'acquire_renew: unknown kind of grant "%"', v_grant ->> 'kind' using errcode = 'invalid_parameter_value';
    end case;
  end loop;
  return 'held';
end
$$;
