-- compatible_from: 1
--
-- Claims of different kinds, all of them or none. `once` comes first and is the only one that may wait, or else the first singleton: whoever
-- waits holds nothing that another could be waiting for. The rest come in the order in which they are given, which is the same for
-- everybody, and refuse what another holds at once.

-- What came of one claim. `isFinal`: asking again will not help; `isBusy`: another transaction is about to decide it.
create function {schema}.acquire_one(
  p_item json, p_id text, p_holder text, p_lease_ms bigint, p_wait_ms integer, p_is_known boolean
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_kind text := p_item ->> 'kind';
  v_told json;
  v_take json;
  v_state text;
begin
  if v_kind = 'singleton' then
    return {schema}.singleton_take(p_item, p_holder, p_lease_ms, p_wait_ms);
  elsif v_kind = 'quota' then
    v_told := {schema}.quota_take_at_once(
      p_item ->> 'name', p_item ->> 'subject', (p_item ->> 'limit')::bigint, p_item -> 'per',
      array[(p_item ->> 'amount')::bigint], array[p_id], p_lease_ms, (p_item ->> 'keepMs')::bigint, p_holder,
      least(p_wait_ms, 10));
    v_take := v_told -> 'takes' -> 0;
    v_state := coalesce(v_take ->> 'state', v_told ->> 'state');
    if v_state in ('known', 'mismatch') and p_lease_ms is not null then
      -- Reserved by an attempt without a recorded outcome; this one goes on with it, or asks for another amount if that has ended.
      v_told := {schema}.quota_rearm(p_item, p_id, p_holder, p_lease_ms, v_told, p_wait_ms);
      v_take := v_told -> 'takes' -> 0;
      v_state := coalesce(v_take ->> 'state', v_told ->> 'state');
    end if;
    if v_state = 'known' and v_take ->> 'entry' not in ('held', 'taken') then
      -- What was given back is not taken again under the same id, and nothing is to be had for it.
      v_state := 'ended';
    end if;
    return pg_catalog.json_build_object(
      'granted', v_state in ('taken', 'known'), 'isBusy', v_state = 'busy', 'isFinal', false, 'state', v_state,
      'id', p_id, 'row', v_told -> 'row', 'take', v_take);
  elsif v_kind = 'rate' and p_is_known then
    return pg_catalog.json_build_object(
      'granted', true, 'isBusy', false, 'isFinal', false, 'state', 'decided', 'take', {schema}.rate_peek(
        p_item ->> 'name', p_item ->> 'subject', p_item ->> 'rule', p_item ->> 'algorithm', (p_item ->> 'limit')::bigint,
        (p_item ->> 'perUs')::bigint, (p_item ->> 'burst')::bigint) -> 0);
  elsif v_kind = 'rate' then
    v_told := {schema}.rate_take(
      p_item ->> 'name', p_item ->> 'subject', p_item ->> 'rule', p_item ->> 'algorithm', (p_item ->> 'limit')::bigint,
      (p_item ->> 'perUs')::bigint, (p_item ->> 'burst')::bigint, array[(p_item ->> 'cost')::bigint], 0);
    if pg_catalog.json_typeof(v_told) = 'object' then
      return '{"granted": false, "isBusy": true, "isFinal": false, "state": "busy"}';
    end if;
    v_take := v_told -> 0;
    return pg_catalog.json_build_object(
      'granted', (v_take ->> 'granted')::boolean, 'isBusy', false, 'isFinal', false, 'state', 'decided', 'take', v_take);
  else
    v_told := {schema}.lock_take(p_item ->> 'name', 0, p_holder, p_lease_ms);
    v_state := v_told ->> 'state';
    return pg_catalog.json_build_object(
      'granted', v_state = 'taken', 'isBusy', false, 'isFinal', false, 'state', v_state, 'lock', v_told);
  end if;
end
$$;

-- Whether a leased call has made its claims before, and its answer was lost: all of them are its own then, also a rate limit, which does not
-- know who has taken of it.
create function {schema}.acquire_is_known(p_once json, p_items json, p_holder text) returns boolean
  language plpgsql stable
  set search_path = ''
as $$
begin
  return exists (
    select from {schema}.claim c
    where c.scope = p_once ->> 'scope' and c.key = p_once ->> 'key' and c.holder = p_holder and c.status = 'pending'
  ) or exists (
    select from pg_catalog.json_array_elements(p_items) i
    where exists (
      select from {schema}.claim c
      where i.value ->> 'kind' = 'singleton' and c.scope = i.value ->> 'scope' and c.holder = p_holder and c.status = 'pending'
    ) or exists (
      select from {schema}.quota_entry e
      where i.value ->> 'kind' = 'quota' and e.name = i.value ->> 'name' and e.subject = i.value ->> 'subject'
        and e.state = 'held' and e.holder = p_holder
    ) or exists (
      select from {schema}.lock l
      where i.value ->> 'kind' = 'lock' and l.name = i.value ->> 'name' and l.holder = p_holder and l.expires_at > '-infinity'
    )
  );
end
$$;

-- Claims all, or says what is in the way of each. What is refused is undone here, so that no lock stays behind in a caller's transaction; if the
-- refusal is final it is the outcome of `once`, and stays. `p_again`: it was sent before, under a lease, and is not known to have arrived.
create function {schema}.acquire(
  p_once json, p_items json, p_holder text, p_lease_ms bigint, p_wait_ms integer, p_again boolean default false
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
  v_is_moot boolean := false;
  v_is_known boolean := p_lease_ms is not null and p_again
    and {schema}.acquire_is_known(p_once, p_items, p_holder);
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
      if v_once ->> 'state' not in ('claimed', 'taken over') then
        return pg_catalog.json_build_object('state', 'once', 'once', v_once);
      end if;
    end if;
    v_from := pg_catalog.clock_timestamp();
    begin
      for v_item in select i.value from pg_catalog.json_array_elements(p_items) i loop
        -- What is reserved has the same id in every attempt, in whatever order its caller names things.
        if v_is_refused and v_item ->> 'kind' = 'lock' then
          -- All is refused: it is only looked at, so that it is in nobody's way.
          v_one := {schema}.lock_look(v_item ->> 'name', 0);
          v_results := v_results || v_one;
          continue;
        end if;
        v_one := {schema}.acquire_one(
          v_item,
          coalesce(v_item ->> 'id', case when p_lease_ms is not null
            then coalesce(v_once ->> 'id', p_holder) || ':' || pg_catalog.cardinality(v_results) end),
          p_holder, p_lease_ms,
          case when p_once is null and pg_catalog.cardinality(v_results) = 0 then p_wait_ms
            -- All is refused: one wait after the other would be for nothing.
            when v_is_refused then 1 else 10 end,
          v_is_known);
        if p_once is null and pg_catalog.cardinality(v_results) = 0
          and (p_lease_ms is null or v_one -> 'claim' ->> 'leftMs' is not null) then
          -- Of the others. A lease that began after it had waited says itself how old it is.
          v_from := pg_catalog.clock_timestamp();
        end if;
        v_results := v_results || v_one;
        v_is_refused := v_is_refused or not (v_one ->> 'granted')::boolean;
        v_is_final := v_is_final or (v_one ->> 'isFinal')::boolean;
        -- What was asked for has no answer: the caller asks in another way, or is told of its mistake.
        v_is_moot := v_is_moot or v_one ->> 'state' in ('no slot', 'nested');
      end loop;
      v_is_final := v_is_final and not v_is_moot;
      if v_is_refused then
        raise exception 'refused' using errcode = 'DIB02';
      end if;
    exception when sqlstate 'DIB02' then
      null;
    end;
    if v_is_refused and p_once is not null then
      if not v_is_final then
        raise exception 'refused' using errcode = 'DIB02';
      end if;
      perform {schema}.claim_finish(
        p_once ->> 'scope', p_once ->> 'key', (v_once ->> 'fence')::bigint, null, 'failed',
        pg_catalog.json_build_object(
          'name', 'AcquireRefusedError', 'message', 'What was claimed together was refused for good.',
          'fields', pg_catalog.json_build_object('items', p_items, 'results', (
            -- Without what others have stored, if that is long: here it would be stored again for each key.
            select pg_catalog.json_agg(case when pg_catalog.octet_length(r.one::text) > 10000
              then (r.one::jsonb #- '{claim,outcome}' #- '{claim,hasOutcome}')::json else r.one end order by r.place)
            from pg_catalog.unnest(v_results) with ordinality r (one, place)))),
        (p_once ->> 'keepMs')::bigint, true);
    end if;
  exception when sqlstate 'DIB02' then
    null;
  end;
  if v_is_refused then
    perform {schema}.singleton_give_up(p_items, pg_catalog.array_to_json(v_results), p_holder, p_lease_ms);
  end if;
  return pg_catalog.json_build_object(
    'state', case when v_is_refused then 'refused' else 'granted' end, 'isFinal', v_is_final, 'once', v_once,
    'results', pg_catalog.array_to_json(v_results),
    'tookMs', ceil(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - v_from) * 1000));
end
$$;

-- Whether anything but reservations is among them, whose fence says if it is still held.
create function {schema}.acquire_is_fenced(p_grants json) returns boolean
  language sql immutable
as $$
  select exists (select from pg_catalog.json_array_elements(p_grants) g where g.value ->> 'kind' in ('claim', 'lock'))
$$;

-- Whether each of them is still held under its fence, all locked in the order in which they were claimed. `stored`: an earlier call has ended them, and its answer was lost.
create function {schema}.acquire_state(p_grants json, p_holder text) returns text
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
    v_state := case v_grant ->> 'kind'
      when 'claim' then {schema}.claim_lock(v_grant ->> 'scope', v_grant ->> 'key', (v_grant ->> 'fence')::bigint, null)
      when 'lock' then {schema}.lock_state(v_grant ->> 'name', 0, p_holder, (v_grant ->> 'fence')::bigint)
      else 'held'
    end;
    -- All of them end together: one that has ended shows that the others have, though a lock may be another's by now.
    v_is_stored := v_is_stored or v_state in ('stored', 'released');
    v_is_lost := v_is_lost or v_state = 'lost';
  end loop;
  return case when v_is_stored then 'stored' when v_is_lost then 'lost' else 'held' end;
end
$$;

-- Whether a reservation says that this call has ended, of which a lock does not know any more, since it is another's by now. A claim knows.
create function {schema}.acquire_was_charged(p_grants json, p_holder text) returns boolean
  language sql stable
as $$
  select not exists (select from pg_catalog.json_array_elements(p_grants) g where g.value ->> 'kind' = 'claim')
    and exists (
      select from pg_catalog.json_array_elements(p_grants) g
      join {schema}.quota_entry e on e.name = g.value ->> 'name' and e.id = g.value ->> 'id'
      where g.value ->> 'kind' = 'hold' and e.holder = p_holder and (e.is_done or e.state = 'taken'))
$$;

-- Ends what was claimed, if all of it is still held: claims get the status that is theirs (without one they are released), what was reserved is used or given back,
-- locks are given back. All of it, or nothing; only reservations may be left for another call (`unsettled`), so that the outcome of what is done is stored.
create function {schema}.acquire_end(p_grants json, p_holder text, p_is_done boolean, p_wait_ms integer, p_must boolean)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_grant json;
  v_state text;
  v_told json;
  v_completed_at json;
  v_hold text;
  v_unsettled json[] := '{}';
  v_is_lost boolean := false;
begin
  if p_wait_ms is not null then
    perform {schema}.bound(p_wait_ms);
  end if;
  v_state := {schema}.acquire_state(p_grants, p_holder);
  if v_state = 'lost' and p_is_done and {schema}.acquire_was_charged(p_grants, p_holder) then
    v_state := 'stored';
  end if;
  if v_state = 'lost' and p_must then
    raise exception 'what was claimed is not held any more' using errcode = 'DIB01';
  elsif v_state = 'lost' then
    return '{"state": "lost"}';
  end if;
  for v_grant in
    select g.value from pg_catalog.json_array_elements(p_grants) g
    where v_state = 'held' and g.value ->> 'kind' <> 'hold'
  loop
    if v_grant ->> 'kind' = 'claim' and v_grant ->> 'status' is null then
      perform {schema}.claim_end(v_grant ->> 'scope', v_grant ->> 'key', (v_grant ->> 'fence')::bigint, null,
        (v_grant ->> 'restMs')::bigint, (v_grant ->> 'keepMs')::bigint, v_grant -> 'error', false);
    elsif v_grant ->> 'kind' = 'claim' then
      v_told := {schema}.claim_finish(v_grant ->> 'scope', v_grant ->> 'key', (v_grant ->> 'fence')::bigint, null,
        (v_grant ->> 'status')::{schema}.claim_status, (v_grant ->> 'outcome')::json, (v_grant ->> 'keepMs')::bigint, true);
      v_completed_at := coalesce(v_completed_at, v_told -> 'completedAt');
    elsif v_grant ->> 'kind' = 'lock' then
      perform {schema}.lock_release(v_grant ->> 'name', 0, p_holder, (v_grant ->> 'fence')::bigint);
    elsif v_grant ->> 'kind' = 'take' and not p_is_done then
      perform {schema}.quota_untake(
        v_grant ->> 'name', v_grant ->> 'subject', (v_grant ->> 'amount')::bigint, v_grant ->> 'id');
    elsif v_grant ->> 'kind' = 'rate' and not p_is_done then
      perform {schema}.rate_give_back(v_grant ->> 'name', v_grant ->> 'subject', v_grant ->> 'rule',
        (v_grant ->> 'perUs')::bigint, (v_grant ->> 'cost')::bigint);
    end if;
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
    -- What else was claimed has its own fence, and its outcome counts.
    'state', case when v_is_lost and not {schema}.acquire_is_fenced(p_grants) then 'lost'
      when v_state = 'held' then 'ended' else v_state end,
    'completedAt', v_completed_at, 'unsettled', pg_catalog.array_to_json(v_unsettled));
end
$$;

-- Puts off the end of every lease, if all are still held.
create function {schema}.acquire_renew(p_grants json, p_holder text, p_lease_ms bigint, p_wait_ms integer) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_grant json;
  v_is_held boolean;
begin
  perform {schema}.bound(p_wait_ms);
  if {schema}.acquire_state(p_grants, p_holder) <> 'held' then
    return 'lost';
  end if;
  for v_grant in select g.value from pg_catalog.json_array_elements(p_grants) g loop
    if v_grant ->> 'kind' = 'claim' then
      perform {schema}.claim_renew(
        v_grant ->> 'scope', v_grant ->> 'key', (v_grant ->> 'fence')::bigint, p_wait_ms, p_lease_ms);
    elsif v_grant ->> 'kind' = 'lock' then
      perform {schema}.lock_renew(v_grant ->> 'name', 0, p_holder, (v_grant ->> 'fence')::bigint, p_lease_ms);
    elsif v_grant ->> 'kind' = 'hold' then
      -- point: before the reservation
      v_is_held := {schema}.quota_renew_hold(v_grant, p_holder, p_lease_ms);
      if not v_is_held and not {schema}.acquire_is_fenced(p_grants) then
        return 'lost';
      end if;
    end if;
  end loop;
  return 'held';
end
$$;
