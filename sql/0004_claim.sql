-- compatible_from: 1
--
-- One row is one idempotent operation: who works on it under which fence until when, and what came of it.
--
-- A claim of the caller's own transaction ("joined") is seen by nobody before it has its outcome; if one is left behind
-- `pending` all the same, nobody works on it any more, so its lease is '-infinity', as after a release. A claim that has
-- committed first ("leased") is held until `lease_until`.
-- `pending`: begun; `active`: has its outcome; `failed`: has ended for good without one.
create type {schema}.claim_status as enum ('pending', 'active', 'failed');

create table {schema}.claim (
  scope text collate "C" not null,
  key text collate "C" not null,
  -- Made by the first caller; it stays the same through takeovers, so that the world outside can know a repetition.
  id text not null,
  status {schema}.claim_status not null default 'pending',
  fence bigint not null,
  attempt integer not null default 1,
  -- How many attempts have ended without a word: their lease ran out.
  lost integer not null default 0,
  lease_until timestamptz,
  -- Who works on it, or did last: one call, by a name that no other call has.
  holder text not null,
  fingerprint text,
  -- As text, so that a replay has the bytes of the first answer. Null with `active`: the answer was undefined.
  outcome json,
  input json,
  steps jsonb not null default '{}',
  -- The name of an operation that any process may finish; null once it is finished or released.
  unfinished text,
  created_at timestamptz not null,
  completed_at timestamptz,
  expires_at timestamptz,
  primary key (scope, key),
  -- One, and short: PostgreSQL reads the text of each check anew for every statement. Eight of them tripled the time of an
  -- insert (51 to 148 µs); this one does not show, and the type of `status` costs nothing.
  constraint claim_is_pending_or_over check (
    (status = 'pending') = (lease_until is not null) and num_nonnulls(lease_until, completed_at) = 1
  )
);

-- For maintenance. Neither names `status`: an index that does would keep the outcome from being a HOT update.
create index claim_expires_at_idx on {schema}.claim (expires_at) where expires_at is not null;
create index claim_unfinished_idx on {schema}.claim (unfinished) where unfinished is not null;

-- A claim whose time is over and on which nobody works is as if it were not there.
create function {schema}.claim_is_over(c {schema}.claim, at timestamptz) returns boolean
  language sql immutable
  as $$ select c.expires_at <= at and (c.status <> 'pending' or c.lease_until = '-infinity') $$;

-- Takes the claim, or says why not: the answer is for the loser too, in the same round trip.
--
-- The primary key arbitrates between callers to whom the key is new: the insert of the second waits for the transaction of
-- the first. What is there already is read without a lock, so that replays neither write nor queue up; only what may
-- be taken (over, released, or its lease ran out) is locked, judged again by the clock as it stands then, and updated. So of
-- two that found the same lease run out the second finds a live one. Shown by once.explore.test.ts.
--
-- Every wait for a lock is bounded, and running out of time leaves the caller's transaction usable.
create function {schema}.claim_begin(
  p_scope text, p_key text, p_id text, p_holder text, p_fingerprint text, p_lease_ms bigint, p_keep_ms bigint, p_wait_ms integer,
  p_hold boolean, p_max_lost integer, p_unfinished text, p_input json, p_gave_up json,
  out state text, out claim {schema}.claim, out left_ms bigint
)
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_now timestamptz;
  v_lock boolean := false;
  v_is_new boolean;
begin
  perform {schema}.bound(p_wait_ms);
  for v_turn in 1..20 loop
    if v_lock then
      -- point: before the lock
      select c.* into claim from {schema}.claim c where c.scope = p_scope and c.key = p_key for no key update;
    else
      v_now := {schema}.clock();
      -- point: before the insert
      insert into {schema}.claim as c
        (scope, key, id, holder, fence, lease_until, fingerprint, input, unfinished, created_at, expires_at)
      values
        (p_scope, p_key, p_id, p_holder, {schema}.next_fence(0, v_now),
         coalesce(v_now + p_lease_ms * interval '1 millisecond', '-infinity'), p_fingerprint, p_input, p_unfinished,
         v_now, v_now + p_keep_ms * interval '1 millisecond')
      on conflict do nothing
      returning c.* into claim;
      if found then
        state := 'claimed';
        return;
      end if;
      -- point: somebody was first
      select c.* into claim from {schema}.claim c where c.scope = p_scope and c.key = p_key;
    end if;
    if not found then
      v_lock := false;
      continue;
    end if;

    v_now := {schema}.clock();
    v_is_new := {schema}.claim_is_over(claim, v_now);
    if not coalesce(v_is_new, false) then
      if claim.fingerprint <> p_fingerprint then
        state := 'mismatch';
        return;
      elsif claim.status <> 'pending' then
        state := 'replayed';
        return;
      elsif claim.lease_until > v_now and claim.holder = p_holder then
        -- This very call has claimed it before, and the answer was lost: its lease has begun then, and is not begun anew.
        state := case when claim.lost > 0 then 'taken over' else 'claimed' end;
        left_ms := greatest(1, floor(extract(epoch from claim.lease_until - v_now) * 1000));
        return;
      elsif claim.lease_until > v_now then
        state := 'in progress';
        left_ms := ceil(extract(epoch from claim.lease_until - v_now) * 1000);
        return;
      elsif p_hold and claim.lease_until > '-infinity' then
        state := 'ambiguous';
        return;
      end if;
    end if;
    if not v_lock then
      v_lock := true;
      continue;
    end if;

    -- point: locked
    if v_is_new then
      update {schema}.claim c set
        id = p_id, holder = p_holder, status = 'pending', fence = {schema}.next_fence(c.fence, v_now), attempt = 1, lost = 0,
        lease_until = coalesce(v_now + p_lease_ms * interval '1 millisecond', '-infinity'),
        fingerprint = p_fingerprint, outcome = null, input = p_input, steps = '{}', unfinished = p_unfinished,
        created_at = v_now, completed_at = null, expires_at = v_now + p_keep_ms * interval '1 millisecond'
      where c.scope = p_scope and c.key = p_key
      returning c.* into claim;
      state := 'claimed';
    elsif claim.lease_until > '-infinity' and claim.lost + 1 >= p_max_lost then
      -- point: giving up
      update {schema}.claim c set
        status = 'failed', fence = {schema}.next_fence(c.fence, v_now), lost = c.lost + 1,
        lease_until = null, outcome = p_gave_up, unfinished = null, completed_at = v_now,
        expires_at = v_now + p_keep_ms * interval '1 millisecond'
      where c.scope = p_scope and c.key = p_key
      returning c.* into claim;
      state := 'gave up';
    else
      state := case when claim.lease_until > '-infinity' then 'taken over' else 'claimed' end;
      -- point: taking over
      update {schema}.claim c set
        holder = p_holder, fence = {schema}.next_fence(c.fence, v_now), attempt = c.attempt + 1,
        lost = c.lost + (c.lease_until > '-infinity')::integer,
        lease_until = coalesce(v_now + p_lease_ms * interval '1 millisecond', '-infinity'),
        fingerprint = coalesce(c.fingerprint, p_fingerprint), unfinished = p_unfinished
      where c.scope = p_scope and c.key = p_key
      returning c.* into claim;
    end if;
    return;
  end loop;
  state := 'busy';
exception when lock_not_available then
  claim := null;
  state := 'busy';
end
$$;

-- Locks the row of a claim and says whether it is still held under this fence. `stored`: it has its outcome already, by an
-- earlier call with the same fence whose answer was lost.
create function {schema}.claim_lock(
  p_scope text, p_key text, p_fence bigint, out state text, out claim {schema}.claim
)
  language plpgsql volatile
  set search_path = ''
as $$
begin
  -- point: before the lock
  select c.* into claim from {schema}.claim c where c.scope = p_scope and c.key = p_key for no key update;
  state := case
    when claim.fence is distinct from p_fence then 'lost'
    when claim.status <> 'pending' then 'stored'
    else 'held'
  end;
end
$$;

-- Stores the outcome, if the claim is still held under this fence; else changes nothing and says what is there, or raises if
-- COMMIT follows in the same message.
create function {schema}.claim_finish(
  p_scope text, p_key text, p_fence bigint, p_status {schema}.claim_status, p_outcome json, p_keep_ms bigint, p_must boolean,
  out state text, out claim {schema}.claim
)
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz;
  v_locked record;
begin
  select l.state, l.claim into v_locked from {schema}.claim_lock(p_scope, p_key, p_fence) l;
  state := v_locked.state;
  claim := v_locked.claim;
  if state <> 'held' then
    if p_must then
      raise exception 'the claim is not held any more' using errcode = 'DIB01';
    end if;
    return;
  end if;
  v_now := {schema}.clock();
  -- point: before the outcome
  update {schema}.claim c set
    status = p_status, outcome = p_outcome, lease_until = null, unfinished = null, completed_at = v_now,
    -- Left as it is while nearly all of it lies ahead, which keeps the update HOT.
    expires_at = case
      when c.expires_at > v_now + p_keep_ms * interval '0.9 milliseconds' then c.expires_at
      else v_now + p_keep_ms * interval '1 millisecond'
    end
  where c.scope = p_scope and c.key = p_key
  returning c.* into claim;
  state := 'stored';
end
$$;

-- Puts off the end of the lease, if the claim is still held under this fence.
create function {schema}.claim_renew(p_scope text, p_key text, p_fence bigint, p_lease_ms bigint, out state text)
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz;
begin
  select l.state into state from {schema}.claim_lock(p_scope, p_key, p_fence) l;
  if state <> 'held' then
    return;
  end if;
  v_now := {schema}.clock();
  -- point: before the renewal
  update {schema}.claim c set lease_until = v_now + p_lease_ms * interval '1 millisecond'
  where c.scope = p_scope and c.key = p_key;
end
$$;

-- Records a recovery point, if the claim is still held under this fence.
create function {schema}.claim_step(
  p_scope text, p_key text, p_fence bigint, p_step text, p_value text, out state text
)
  language plpgsql volatile
  set search_path = ''
as $$
begin
  select l.state into state from {schema}.claim_lock(p_scope, p_key, p_fence) l;
  if state <> 'held' then
    return;
  end if;
  -- point: before the step
  update {schema}.claim c set steps = c.steps || pg_catalog.jsonb_build_object(p_step, p_value)
  where c.scope = p_scope and c.key = p_key;
end
$$;

-- Ends an attempt without an outcome, if the claim is still held under this fence. With `p_rest_ms` it looks like a lease that
-- has so long to go (0: has run out): what the attempt did is not known, or another will go on with it. Without, it is
-- released: whoever comes next begins at once, and nothing is ambiguous.
create function {schema}.claim_end(p_scope text, p_key text, p_fence bigint, p_rest_ms bigint, out state text)
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz;
begin
  select l.state into state from {schema}.claim_lock(p_scope, p_key, p_fence) l;
  if state <> 'held' then
    return;
  end if;
  v_now := {schema}.clock();
  -- point: before the release
  update {schema}.claim c set
    fence = {schema}.next_fence(c.fence, v_now),
    lease_until = coalesce(v_now + p_rest_ms * interval '1 millisecond', '-infinity'),
    unfinished = case when p_rest_ms is null then null else c.unfinished end
  where c.scope = p_scope and c.key = p_key;
end
$$;

-- Takes over what processes that are gone have left of an operation. Never waits: what is locked is being looked at by another.
create function {schema}.claim_take_over(
  p_unfinished text, p_holder text, p_lease_ms bigint, p_keep_ms bigint, p_max_lost integer, p_gave_up json,
  p_limit integer
)
  returns table (state text, claim {schema}.claim)
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
    returning case when is_last then 'gave up' else 'taken over' end, c;
end
$$;

-- Removes a batch of claims whose time is over. Never waits: what is locked is being claimed anew.
create function {schema}.claim_forget_expired(p_limit integer) returns integer
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz := {schema}.clock();
  v_count integer;
begin
  -- point: before the removal
  with expired as materialized (
    select c.scope, c.key
    from {schema}.claim c
    where c.expires_at <= v_now and (c.status <> 'pending' or c.lease_until = '-infinity')
    order by c.expires_at
    limit p_limit
    for update skip locked
  )
  delete from {schema}.claim c using expired e where c.scope = e.scope and c.key = e.key;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;

-- Removes one claim for an operator; one that is held only if that is insisted on, since its holder then works for nothing.
create function {schema}.claim_forget(
  p_scope text, p_key text, p_force boolean, out state text, out claim {schema}.claim, out left_ms bigint
)
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz;
begin
  -- point: before the lock
  select c.* into claim from {schema}.claim c where c.scope = p_scope and c.key = p_key for update;
  if not found then
    state := 'absent';
    return;
  end if;
  v_now := {schema}.clock();
  if claim.lease_until > v_now and not p_force then
    state := 'in progress';
    left_ms := ceil(extract(epoch from claim.lease_until - v_now) * 1000);
    return;
  end if;
  -- point: before the removal
  delete from {schema}.claim c where c.scope = p_scope and c.key = p_key;
  state := 'forgotten';
end
$$;
