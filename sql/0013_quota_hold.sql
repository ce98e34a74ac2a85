-- compatible_from: 1
--
-- Reservations that a call holds under a lease, beside its other claims. Renewing and ending a lease does not need the
-- row of the subject: a foreign transaction that holds the row must cost neither the lease nor the outcome.

-- Continues a reservation of an earlier attempt: extends it, or makes it again if it has expired or was voided. An
-- amount that was used under the id stays used, once. If the caller chose the id, the reservation may belong to another
-- call at this moment. The function does not touch it then. Returns `p_result`, the result of quota_take, brought up to
-- date.
--
-- Locks: the entry. The caller has locked the row of the subject. A locked entry is `busy`, so the function does not
-- wait. Explored in acquire-holds.explore.test.ts.
create function {schema}.quota_resume_hold(
  p_item json, p_id text, p_holder text, p_lease_ms bigint, p_result json, p_wait_ms integer
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_entry {schema}.quota_entry;
  v_now timestamptz := {schema}.clock();
  v_is_live boolean;
  v_state text;
begin
  -- point: before the entry
  select e.* into v_entry from {schema}.quota_entry e where e.name = p_item ->> 'name' and e.id = p_id for update skip locked;
  if not found then
    return '{"state": "busy"}';
  end if;
  v_is_live := v_entry.state = 'held' and v_entry.expires_at > v_now and not v_entry.is_done;
  if p_result -> 'takes' -> 0 ->> 'state' = 'known' and (v_entry.is_done or v_entry.state = 'taken') then
    -- The entry may have ended after quota_take read it.
    v_state := 'known';
  elsif v_entry.is_done or v_entry.state in ('taken', 'refunded') or v_entry.expires_at is null
    or v_entry.subject <> p_item ->> 'subject' or v_is_live and p_result -> 'takes' -> 0 ->> 'state' = 'mismatch' then
    return p_result;
  elsif v_is_live and p_item ->> 'id' is not null and v_entry.holder is distinct from p_holder then
    -- A reservation without a lease does not end with a call, so no wait would help.
    return case when v_entry.holder is null
      then '{"state": "done", "takes": [{"state": "mismatch"}]}' else '{"state": "busy"}' end;
  elsif v_is_live then
    -- point: before the renewal
    update {schema}.quota_entry e set expires_at = v_now + p_lease_ms * interval '1 millisecond', holder = p_holder
    where e.name = v_entry.name and e.id = v_entry.id;
    -- The amount is reserved, and nothing was used yet.
    v_state := 'taken';
  end if;
  if v_state is not null then
    return (p_result::jsonb || pg_catalog.jsonb_build_object('takes', pg_catalog.jsonb_build_array(
      (p_result -> 'takes' -> 0)::jsonb || pg_catalog.jsonb_build_object('state', v_state, 'entry',
        case when v_state = 'known' then 'taken' end))))::json;
  end if;
  -- point: before the removal of the old entry
  delete from {schema}.quota_entry e where e.name = v_entry.name and e.id = v_entry.id;
  if v_entry.state = 'held' then
    -- point: before the release of its amount
    update {schema}.quota q set held = q.held - v_entry.requested
    where q.name = v_entry.name and q.subject = v_entry.subject and q.window_id = v_entry.window_id;
  end if;
  return {schema}.quota_take_no_wait(
    v_entry.name, v_entry.subject, (p_item ->> 'limit')::bigint, p_item -> 'per', array[(p_item ->> 'amount')::bigint],
    array[v_entry.id], p_lease_ms, (p_item ->> 'keepMs')::bigint, p_holder, least(p_wait_ms, 10));
end
$$;

-- Extends a leased reservation. Returns false if the reservation has ended, or belongs to another call.
--
-- Locks: the entry. The function skips a locked entry until the next renewal, so it never waits. Explored in
-- acquire-holds.explore.test.ts.
create function {schema}.quota_renew_hold(p_grant json, p_holder text, p_lease_ms bigint) returns boolean
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_entry {schema}.quota_entry;
  v_now timestamptz;
begin
  -- point: before the lock of the entry
  select e.* into v_entry from {schema}.quota_entry e where e.name = p_grant ->> 'name' and e.id = p_grant ->> 'id'
  for no key update skip locked; -- guard: acquire.renew-hold-skip-locked
  if not found then
    return true;
  elsif v_entry.state <> 'held' or v_entry.holder is distinct from p_holder then -- guard: acquire.renew-hold-holder
    return false;
  end if;
  v_now := {schema}.clock();
  -- point: before the renewal
  update {schema}.quota_entry e set
    expires_at = v_now + p_lease_ms * interval '1 millisecond',
    forget_at = case when e.forget_at is not null
      then greatest(e.forget_at, v_now + p_lease_ms * interval '1 millisecond' + interval '1 day') end
  where e.name = v_entry.name and e.id = v_entry.id;
  return true;
end
$$;

-- Ends a leased reservation: used, or voided. An expired reservation is still charged if the work is done. Returns
-- `ended`, `unsettled`, or `lost` if the reservation belongs to another call by now.
--
-- Without `p_wait_ms` the function never waits, because an outcome is stored in the same transaction. If a foreign
-- transaction holds the row of the subject, the entry alone records the end, and the next call that reads the expired
-- entry counts it so. An end that the entry cannot record is `unsettled`: the caller asks again afterwards, with a
-- wait.
--
-- Locks: the entry, then the row if it is free. With a wait: the row, then the entry, in the order that all calls keep.
-- Explored in acquire-holds.explore.test.ts.
create function {schema}.quota_end_hold(p_grant json, p_holder text, p_is_done boolean, p_wait_ms integer) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_name text := p_grant ->> 'name';
  v_id text := p_grant ->> 'id';
  v_subject text := p_grant ->> 'subject';
  v_amount bigint := (p_grant ->> 'amount')::bigint;
  v_entry {schema}.quota_entry;
  v_row {schema}.quota;
  v_now timestamptz;
  v_is_free boolean := true;
begin
  if p_wait_ms is not null then
    perform {schema}.limit_lock_wait(p_wait_ms);
    -- point: before the lock of the row
    perform from {schema}.quota q where q.name = v_name and q.subject = v_subject for no key update;
    -- point: before the lock of the entry
    select e.* into v_entry from {schema}.quota_entry e where e.name = v_name and e.id = v_id for no key update;
  else
    -- point: before the entry
    select e.* into v_entry from {schema}.quota_entry e where e.name = v_name and e.id = v_id for no key update skip locked; -- guard: acquire.end-hold-lock
    if not found then
      -- point: before the read of the entry
      perform from {schema}.quota_entry e where e.name = v_name and e.id = v_id;
      return case when found then 'unsettled' else 'lost' end;
    end if;
    -- point: before the row without a wait
    perform from {schema}.quota q where q.name = v_name and q.subject = v_subject for no key update skip locked;
    v_is_free := found;
    -- point: before the read of the row
    select q.* into v_row from {schema}.quota q where q.name = v_name and q.subject = v_subject;
  end if;
  v_now := {schema}.clock();
  if p_is_done and v_entry.subject = v_subject and not v_entry.is_done
    and (v_entry.state = 'void' or v_entry.state = 'expired' and v_entry.holder is distinct from p_holder) then
    -- The reservation expired and was voided by hand, or another call has used the id since. But this call has done its
    -- work.
    if not v_is_free then
      return 'unsettled';
    end if;
    -- point: before the entry is restored
    update {schema}.quota_entry e set holder = p_holder, state = 'expired', requested = v_amount
    where e.name = v_name and e.id = v_id;
    v_entry.state := 'expired';
    v_entry.requested := v_amount;
  elsif v_entry.holder is distinct from p_holder or v_entry.subject <> v_subject then -- guard: acquire.end-hold-holder
    return 'lost';
  end if;
  if v_entry.is_done or v_entry.state not in ('held', 'expired') then
    return 'ended';
  elsif v_is_free then
    perform {schema}.quota_resolve(
      v_name, v_id, case when p_is_done then 'settle' else 'void' end, v_entry.requested, 'overdraw',
      (p_grant ->> 'limit')::bigint, p_grant -> 'per', null, p_holder);
  elsif p_is_done and (v_entry.state = 'expired' or v_entry.expires_at <= v_now
    and (v_row.window_id = v_entry.window_id and v_row.ends_at > v_now) is not true) then
    -- The amount does not count as reserved any more, or its window is over.
    return 'unsettled';
  elsif v_entry.state = 'held' then
    -- point: before the mark
    update {schema}.quota_entry e set
      is_done = p_is_done, expires_at = case when p_is_done then e.expires_at else v_now end,
      -- Without its holder, a later renewal does not change the entry.
      holder = case when p_is_done then e.holder end
    where e.name = v_name and e.id = v_id;
  end if;
  return 'ended';
end
$$;
