-- compatible_from: 1
--
-- Reservations that a call holds under a lease, together with what else it has claimed. A lease is renewed and ended whoever has the row of
-- the subject: a transaction of a stranger must cost neither the lease nor the outcome.

-- Goes on with a reservation that an earlier attempt has made: puts off its end, or, if it has run out or was given back, makes it anew. What
-- was used under its id stays used, once. An id that the caller has given may be another call's at this moment, which is then not done.
-- Its row is locked. Says what quota_take does, and what has become of it since.
create function {schema}.quota_rearm(
  p_item json, p_id text, p_holder text, p_lease_ms bigint, p_told json, p_wait_ms integer
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
  if p_told -> 'takes' -> 0 ->> 'state' = 'known' and (v_entry.is_done or v_entry.state = 'taken') then
    -- Perhaps since a moment ago.
    v_state := 'known';
  elsif v_entry.is_done or v_entry.state in ('taken', 'refunded') or v_entry.expires_at is null
    or v_entry.subject <> p_item ->> 'subject' or v_is_live and p_told -> 'takes' -> 0 ->> 'state' = 'mismatch' then
    return p_told;
  elsif v_is_live and p_item ->> 'id' is not null and v_entry.holder is distinct from p_holder then
    -- One that was made by itself is ended by itself: no wait would help.
    return case when v_entry.holder is null
      then '{"state": "done", "takes": [{"state": "mismatch"}]}' else '{"state": "busy"}' end;
  elsif v_is_live then
    -- point: before the renewal
    update {schema}.quota_entry e set expires_at = v_now + p_lease_ms * interval '1 millisecond', holder = p_holder
    where e.name = v_entry.name and e.id = v_entry.id;
    -- It is reserved, and nothing was used yet.
    v_state := 'taken';
  end if;
  if v_state is not null then
    return (p_told::jsonb || pg_catalog.jsonb_build_object('takes', pg_catalog.jsonb_build_array(
      (p_told -> 'takes' -> 0)::jsonb || pg_catalog.jsonb_build_object('state', v_state, 'entry',
        case when v_state = 'known' then 'taken' end))))::json;
  end if;
  -- point: before the old entry goes
  delete from {schema}.quota_entry e where e.name = v_entry.name and e.id = v_entry.id;
  if v_entry.state = 'held' then
    -- point: before what it held is free
    update {schema}.quota q set held = q.held - v_entry.asked
    where q.name = v_entry.name and q.subject = v_entry.subject and q.window_id = v_entry.window_id;
  end if;
  return {schema}.quota_take_at_once(
    v_entry.name, v_entry.subject, (p_item ->> 'limit')::bigint, p_item -> 'per', array[(p_item ->> 'amount')::bigint],
    array[v_entry.id], p_lease_ms, (p_item ->> 'keepMs')::bigint, p_holder, least(p_wait_ms, 10));
end
$$;

-- Puts off the end of a reservation under a lease. False: it is none any more, or another call's. What another has locked at this moment is
-- left as it is until the next renewal.
create function {schema}.quota_renew_hold(p_grant json, p_holder text, p_lease_ms bigint) returns boolean
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_entry {schema}.quota_entry;
  v_now timestamptz;
begin
  -- point: before the entry of the hold
  select e.* into v_entry from {schema}.quota_entry e where e.name = p_grant ->> 'name' and e.id = p_grant ->> 'id'
  for no key update skip locked;
  if not found then
    return true;
  elsif v_entry.state <> 'held' or v_entry.holder is distinct from p_holder then
    return false;
  end if;
  v_now := {schema}.clock();
  -- point: before the hold
  update {schema}.quota_entry e set
    expires_at = v_now + p_lease_ms * interval '1 millisecond',
    forget_at = case when e.forget_at is not null
      then greatest(e.forget_at, v_now + p_lease_ms * interval '1 millisecond' + interval '1 day') end
  where e.name = v_entry.name and e.id = v_entry.id;
  return true;
end
$$;

-- Ends a reservation under a lease: it is used, or given back. What has run out before stays a charge, for the work is done. `lost`: it
-- is another call's by now.
--
-- Without `p_wait_ms` it waits for nobody, since an outcome is stored with it: if a stranger's transaction has the row, the entry alone
-- says what has become of it, and whoever finds that it has run out counts it so; what cannot be said there is `unsettled`, to be asked
-- for afterwards, with a wait. Locks: the entry, and then the row if nobody has it; with a wait, in the order of everybody else.
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
    perform {schema}.bound(p_wait_ms);
    -- point: before the row
    perform from {schema}.quota q where q.name = v_name and q.subject = v_subject for no key update;
    -- point: before the entry behind it
    select e.* into v_entry from {schema}.quota_entry e where e.name = v_name and e.id = v_id for no key update;
  else
    -- point: before the entry
    select e.* into v_entry from {schema}.quota_entry e where e.name = v_name and e.id = v_id for no key update skip locked;
    if not found then
      -- point: before the look at the entry
      perform from {schema}.quota_entry e where e.name = v_name and e.id = v_id;
      return case when found then 'unsettled' else 'lost' end;
    end if;
    -- point: before the row at once
    perform from {schema}.quota q where q.name = v_name and q.subject = v_subject for no key update skip locked;
    v_is_free := found;
    -- point: before the look at the row
    select q.* into v_row from {schema}.quota q where q.name = v_name and q.subject = v_subject;
  end if;
  v_now := {schema}.clock();
  if p_is_done and v_entry.subject = v_subject and not v_entry.is_done
    and (v_entry.state = 'void' or v_entry.state = 'expired' and v_entry.holder is distinct from p_holder) then
    -- It had run out and was given back by hand, or by another call that has had the id since; this one has done its work.
    if not v_is_free then
      return 'unsettled';
    end if;
    -- point: before it is taken back
    update {schema}.quota_entry e set holder = p_holder, state = 'expired', asked = v_amount
    where e.name = v_name and e.id = v_id;
    v_entry.state := 'expired';
    v_entry.asked := v_amount;
  elsif v_entry.holder is distinct from p_holder or v_entry.subject <> v_subject then
    return 'lost';
  end if;
  if v_entry.is_done or v_entry.state not in ('held', 'expired') then
    return 'ended';
  elsif v_is_free then
    perform {schema}.quota_resolve(
      v_name, v_id, case when p_is_done then 'settle' else 'void' end, v_entry.asked, 'overdraw',
      (p_grant ->> 'limit')::bigint, p_grant -> 'per', null, p_holder);
  elsif p_is_done and (v_entry.state = 'expired' or v_entry.expires_at <= v_now
    and (v_row.window_id = v_entry.window_id and v_row.ends_at > v_now) is not true) then
    -- It does not count as reserved any more, or in a window that is over.
    return 'unsettled';
  elsif v_entry.state = 'held' then
    -- point: before the mark
    update {schema}.quota_entry e set
      is_done = p_is_done, expires_at = case when p_is_done then e.expires_at else v_now end,
      -- A renewal that comes behind does not find it.
      holder = case when p_is_done then e.holder end
    where e.name = v_name and e.id = v_id;
  end if;
  return 'ended';
end
$$;
