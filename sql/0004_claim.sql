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
  -- How many attempts have no recorded outcome: their lease ran out.
  lost integer not null default 0,
  lease_until timestamptz,
  -- One call, by a name that no other call has; `tx:` and a number for a transaction; `nobody` once it was given back.
  holder text not null,
  fingerprint text,
  -- As text, so that a replay has the bytes of the first answer. Null with `active`: the answer was undefined.
  outcome json,
  input json,
  steps jsonb not null default '{}',
  -- What the last attempt that ended with an error has said.
  last_error json,
  -- The name of an operation that any process may finish; null once it is finished or released.
  unfinished text,
  created_at timestamptz not null,
  completed_at timestamptz,
  -- Null for ever, and while somebody may be working on it.
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

-- What a caller is told, in one value: a row of twelve columns cost a replay twice the time, half of it in the client. Steps
-- go to whoever runs it, an outcome to whoever replays it, and neither to one who waits.
create function {schema}.claim_told(state text, c {schema}.claim, left_ms bigint) returns json
  language sql stable
as $$
  select pg_catalog.json_build_object(
    'state', state, 'key', c.key, 'id', c.id, 'status', c.status, 'fence', c.fence, 'attempt', c.attempt, 'lost', c.lost,
    'holder', c.holder, 'leftMs', left_ms, 'leaseUntil', case when left_ms is not null then {schema}.micros(c.lease_until) end,
    'completedAt', {schema}.micros(c.completed_at),
    'hasOutcome', c.outcome is not null, 'outcome', c.outcome,
    'steps', case when state in ('claimed', 'taken over') then c.steps end)
$$;

-- Takes the claim, or says why not: the answer is for the loser too, in the same round trip.
--
-- What is there is read without a lock, so that replays neither write nor queue up. If nothing is, the primary key arbitrates: the
-- insert of the second waits for the transaction of the first, and whoever loses looks again. What may be taken
-- (expired, released, or its lease ran out) is locked, judged again by the clock as it stands then, and updated. So
-- of two that found the same lease run out the second finds a live one. Shown by once.explore.test.ts.
--
-- Without `p_lease_ms` the claim is joined: it belongs to the transaction that it is made in.
create function {schema}.claim_begin(
  p_scope text, p_key text, p_id text, p_holder text, p_fingerprint text, p_lease_ms bigint, p_keep_ms bigint,
  p_wait_ms integer, p_hold boolean, p_max_lost integer, p_unfinished text, p_input json, p_gave_up json
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
  perform {schema}.bound(p_wait_ms);
  for v_turn in 1..20 loop
    if v_turn > 1 then
      -- What is left of the time: each turn may have had to wait.
      perform {schema}.bound(greatest(
        1, p_wait_ms - pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - v_since) * 1000)::integer);
    end if;
    if v_lock then
      -- point: before the lock
      select c.* into v_claim from {schema}.claim c where c.scope = p_scope and c.key = p_key for no key update;
    else
      -- point: before the look
      select c.* into v_claim from {schema}.claim c where c.scope = p_scope and c.key = p_key;
    end if;
    if not found then
      v_lock := false;
      v_now := {schema}.clock();
      -- point: before the insert
      insert into {schema}.claim as c
        (scope, key, id, holder, fence, lease_until, fingerprint, input, unfinished, created_at, expires_at)
      values
        (p_scope, p_key, p_id, coalesce(p_holder, 'tx:' || pg_catalog.pg_current_xact_id()::text),
         {schema}.next_fence(0, v_now),
         coalesce(v_now + p_lease_ms * interval '1 millisecond', '-infinity'), p_fingerprint, p_input, p_unfinished,
         v_now, case when p_lease_ms is null then v_now + p_keep_ms * interval '1 millisecond' end)
      on conflict do nothing
      returning c.fence, c.holder into v_fence, v_holder;
      -- Somebody was first: who, shows at the next look, which has a snapshot of its own.
      continue when not found;
      if p_lease_ms is not null then
        v_later := {schema}.clock();
        if v_later >= v_now + interval '10 milliseconds' then
          -- It has waited for one that rolled back: its lease begins now.
          -- point: waited
          update {schema}.claim c set lease_until = v_later + p_lease_ms * interval '1 millisecond'
          where c.scope = p_scope and c.key = p_key;
          v_left_ms := p_lease_ms - ceil(pg_catalog.date_part('epoch', {schema}.clock() - v_later) * 1000);
        end if;
      end if;
      -- All that there is to say of a new one; see claim_told.
      return pg_catalog.json_build_object(
        'state', 'claimed', 'id', p_id, 'fence', v_fence, 'attempt', 1, 'holder', v_holder, 'leftMs', v_left_ms);
    end if;

    v_now := {schema}.clock();
    v_is_over := coalesce(v_claim.expires_at <= v_now, false);
    v_is_lost := v_claim.lease_until > '-infinity';
    if not v_is_over then
      if v_claim.fingerprint <> p_fingerprint then
        return {schema}.claim_told('mismatch', v_claim, null);
      elsif v_claim.status <> 'pending' then
        return {schema}.claim_told('replayed', v_claim, null);
      end if;
      -- A transaction gets its number when it first writes: if it has none, it has no claim either.
      v_holder := coalesce(p_holder, 'tx:' || pg_catalog.pg_current_xact_id_if_assigned()::text, '');
      if v_claim.lease_until > v_now then
        v_left_ms := greatest(1, floor(pg_catalog.date_part('epoch', v_claim.lease_until - v_now) * 1000));
        if v_claim.holder <> v_holder then
          return {schema}.claim_told('in progress', v_claim, v_left_ms);
        end if;
        -- This very call has claimed it before, and the answer was lost: its lease has begun then, and is not begun anew.
        return {schema}.claim_told(case when v_claim.lost > 0 then 'taken over' else 'claimed' end, v_claim, v_left_ms);
      elsif not v_is_lost and v_claim.holder = v_holder then
        -- Only a transaction can find its own claim without a lease.
        return {schema}.claim_told('nested', v_claim, null);
      elsif p_hold and v_is_lost then
        return {schema}.claim_told('ambiguous', v_claim, null);
      end if;
    end if;
    if not v_lock then
      v_lock := true;
      continue;
    end if;

    v_holder := coalesce(p_holder, 'tx:' || pg_catalog.pg_current_xact_id()::text);
    if v_is_over then
      -- point: taking what has expired
      update {schema}.claim c set
        id = p_id, holder = v_holder, status = 'pending', fence = {schema}.next_fence(c.fence, v_now), attempt = 1,
        lost = 0, lease_until = coalesce(v_now + p_lease_ms * interval '1 millisecond', '-infinity'),
        fingerprint = p_fingerprint, outcome = null, input = p_input, steps = '{}', last_error = null,
        unfinished = p_unfinished, created_at = v_now, completed_at = null,
        expires_at = case when p_lease_ms is null then v_now + p_keep_ms * interval '1 millisecond' end
      where c.scope = p_scope and c.key = p_key
      returning c.* into v_claim;
      return {schema}.claim_told('claimed', v_claim, null);
    elsif v_is_lost and v_claim.lost + 1 >= p_max_lost then
      -- point: giving up
      update {schema}.claim c set
        status = 'failed', fence = {schema}.next_fence(c.fence, v_now), lost = c.lost + 1, lease_until = null,
        outcome = p_gave_up, unfinished = null, completed_at = v_now,
        expires_at = v_now + p_keep_ms * interval '1 millisecond'
      where c.scope = p_scope and c.key = p_key
      returning c.* into v_claim;
      return {schema}.claim_told('gave up', v_claim, null);
    else
      -- point: taking over
      update {schema}.claim c set
        holder = v_holder, fence = {schema}.next_fence(c.fence, v_now), attempt = c.attempt + 1,
        lost = c.lost + v_is_lost::integer,
        lease_until = coalesce(v_now + p_lease_ms * interval '1 millisecond', '-infinity'),
        fingerprint = coalesce(c.fingerprint, p_fingerprint), unfinished = p_unfinished,
        expires_at = case when p_lease_ms is null then v_now + p_keep_ms * interval '1 millisecond' end
      where c.scope = p_scope and c.key = p_key
      returning c.* into v_claim;
      return {schema}.claim_told(case when v_is_lost then 'taken over' else 'claimed' end, v_claim, null);
    end if;
  end loop;
  raise lock_not_available using message = 'the claim was made and forgotten twenty times meanwhile';
end
$$;

-- The same for a claim that belongs to the transaction it is made in, which running out of time must leave usable: hence
-- subtransactions, and an end before `statement_timeout`, which would abort it. It waits in slices, since `lock_timeout` is
-- for one holder, and behind each that gives up an insert may wait for the next; they are counted as well as timed, for a
-- test's own `bound` takes no time. If another holds the claim its lock is given back: until the caller's end it would keep
-- the holder from renewing its lease.
create function {schema}.claim_begin_joined(
  p_scope text, p_key text, p_id text, p_fingerprint text, p_keep_ms bigint, p_wait_ms integer
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_told json;
  v_since timestamptz := pg_catalog.clock_timestamp();
  v_left_ms integer := {schema}.bounded_wait(p_wait_ms);
begin
  for v_slice in 1..ceil(v_left_ms / 100.0)::integer loop
    begin
      v_told := {schema}.claim_begin(
        p_scope, p_key, p_id, null, p_fingerprint, null, p_keep_ms, least(v_left_ms, 100), true, null, null, null, null);
      if v_told ->> 'state' = 'in progress' then
        raise lock_not_available;
      end if;
      return v_told;
    exception when lock_not_available then
      if v_told is not null then
        return v_told;
      end if;
    end;
    v_left_ms := v_left_ms - pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - v_since) * 1000;
    v_since := pg_catalog.clock_timestamp();
    exit when v_left_ms <= 0;
  end loop;
  return '{"state": "busy"}';
end
$$;

-- Locks the row of a claim, if it has this fence, and says whether it is still held. Alone it waits so long at most; in a
-- transaction of the caller's the row is its own, and there is nothing to wait for.
create function {schema}.claim_lock(p_scope text, p_key text, p_fence bigint, p_wait_ms integer) returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_is_pending boolean;
begin
  if p_wait_ms is not null then
    perform {schema}.bound(p_wait_ms);
  end if;
  -- point: before the lock
  select c.status = 'pending' into v_is_pending
  from {schema}.claim c where c.scope = p_scope and c.key = p_key and c.fence = p_fence for no key update;
  return case when v_is_pending then 'held' when v_is_pending is null then 'lost' else 'stored' end;
end
$$;

-- Stores the outcome, if the claim is still held under this fence; else changes nothing and says what is there, or raises if
-- COMMIT follows in the same message. The update itself judges; a lock goes before it where it may have to wait, so that the
-- clock is read after that.
create function {schema}.claim_finish(
  p_scope text, p_key text, p_fence bigint, p_wait_ms integer, p_status {schema}.claim_status, p_outcome json,
  p_keep_ms bigint, p_must boolean
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
    status = p_status, outcome = p_outcome, lease_until = null, unfinished = null, completed_at = {schema}.clock(),
    -- Left as it is while nearly all of it lies ahead, which keeps the update HOT.
    expires_at = case
      when c.expires_at > {schema}.clock() + p_keep_ms * interval '0.9 milliseconds' then c.expires_at
      else {schema}.clock() + p_keep_ms * interval '1 millisecond'
    end
  where c.scope = p_scope and c.key = p_key and c.fence = p_fence and c.status = 'pending'
  returning c.completed_at into v_completed_at;
  if not found then
    -- point: before the look
    select c.* into v_claim from {schema}.claim c where c.scope = p_scope and c.key = p_key;
    if v_claim.fence is distinct from p_fence then
      if p_must then
        raise exception 'the claim is not held any more' using errcode = 'DIB01';
      end if;
      return {schema}.claim_told('lost', v_claim, null);
    end if;
    -- By an earlier call with the same fence, whose answer was lost.
    v_completed_at := v_claim.completed_at;
  end if;
  return pg_catalog.json_build_object('state', 'stored', 'completedAt', {schema}.micros(v_completed_at));
end
$$;

-- Puts off the end of the lease, if the claim is still held under this fence.
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
  p_scope text, p_key text, p_fence bigint, p_wait_ms integer, p_step text, p_value text, out state text
)
  language plpgsql volatile
  set search_path = ''
as $$
begin
  state := {schema}.claim_lock(p_scope, p_key, p_fence, p_wait_ms);
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
-- released: whoever comes next begins at once, and nothing is ambiguous. `p_is_void`: the attempt has not begun its work, so
-- the one before it is the one without a recorded outcome, and is not counted a second time.
create function {schema}.claim_end(
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
  if state <> 'held' then
    return;
  end if;
  v_now := {schema}.clock();
  -- point: before the release
  update {schema}.claim c set
    fence = {schema}.next_fence(c.fence, v_now), holder = 'nobody', last_error = coalesce(p_error, c.last_error),
    lost = case when p_is_void then greatest(0, c.lost - 1) else c.lost end,
    lease_until = coalesce(v_now + p_rest_ms * interval '1 millisecond', '-infinity'),
    unfinished = case when p_rest_ms is null then null else c.unfinished end,
    -- A slot is kept to the end of its period, whoever ends it.
    expires_at = case when p_rest_ms is null then v_now + p_keep_ms * interval '1 millisecond'
      when c.scope like '::%' then c.expires_at end
  where c.scope = p_scope and c.key = p_key;
end
$$;
