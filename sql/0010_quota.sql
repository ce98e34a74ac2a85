-- compatible_from: 1
--
-- Quotas: the part of a limit that a subject has used in its current window. Each subject has one row: a new window
-- replaces the old one. Every change of a row or an entry locks the row of the subject first. One exception is the
-- lease of a reservation: a foreign transaction may hold the row for any time, and must not cost the lease.

create table {schema}.quota (
  name text collate "C" not null,
  subject text collate "C" not null,
  -- The row has both bounds, so that a change of the rule does not change the window. A stock lasts from '-infinity' to
  -- 'infinity'.
  starts_at timestamptz not null,
  ends_at timestamptz not null,
  -- Identifies the window, as a fence does. Two windows of a subject may begin at the same time, if the rule changed or
  -- the row was deleted.
  window_id bigint not null default 0,
  -- The limit when something was last granted. It may be lower now, which takes nothing away.
  granted_limit bigint not null,
  used bigint not null default 0,
  -- Reserved, including reservations that have expired and are not subtracted yet. `holds_until`: when the first of them
  -- may expire. An end that could not lock the row may have expired one earlier.
  held bigint not null default 0,
  holds_until timestamptz,
  -- Settled after the expiry, beyond the limit.
  overdrawn bigint not null default 0,
  -- The part of `used` and `overdrawn` without an entry: taken without an id, or its entry is deleted.
  unlisted bigint not null default 0,
  primary key (name, subject), -- guard: quota.subject-unique
  constraint quota_within_its_limit check (used + held <= granted_limit and least(used, held, overdrawn, unlisted) >= 0) -- guard: quota.limit-check
) with (fillfactor = 70);

-- For maintenance. The column changes with the window only, so that a take is a HOT update.
create index quota_ends_at_idx on {schema}.quota (ends_at) where ends_at < 'infinity';

-- `held`: reserved; `taken`: used; the others have ended, each in its way.
create type {schema}.quota_state as enum ('held', 'taken', 'void', 'expired', 'refunded');

-- One row is an amount that was taken or reserved under an id. By the id, the take happens once and can be undone.
create table {schema}.quota_entry (
  name text collate "C" not null,
  id text collate "C" not null,
  subject text collate "C" not null,
  state {schema}.quota_state not null,
  requested bigint not null,
  -- The amount that counts now.
  amount bigint not null,
  -- The part that was settled beyond the limit.
  overdrawn bigint not null default 0,
  -- The window that is charged.
  starts_at timestamptz not null,
  window_id bigint not null default 0,
  -- The end of a reservation. Null: not a reservation.
  expires_at timestamptz,
  -- Only for a reservation under a lease: the call that holds it, and whether its work is done. Then it does not
  -- expire any more: it counts as used as soon as somebody updates the row. These two columns and `expires_at` may
  -- change without the lock of the row.
  holder text,
  is_done boolean not null default false,
  created_at timestamptz not null,
  -- When the entry may be deleted. Null: never.
  forget_at timestamptz,
  primary key (name, id) -- guard: quota.id-unique
);

create index quota_entry_held_idx on {schema}.quota_entry (name, subject, window_id, expires_at) where state = 'held';

create index quota_entry_forget_at_idx on {schema}.quota_entry (forget_at) where forget_at is not null;

-- Returns the row as of now: in a new window if its own has ended, and without expired reservations. The caller has
-- locked the row and writes it. A window begins where the previous one ends, even if its rule or zone has changed.
-- Locks: the expired entries.
create function {schema}.quota_advance(p_row {schema}.quota, p_per json, p_now timestamptz) returns {schema}.quota
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_row {schema}.quota := p_row;
  v_period record;
  v_expired bigint;
  v_done bigint;
begin
  if v_row.ends_at <= p_now or (v_row.ends_at = 'infinity') <> (p_per is null) then
    select * into v_period from {schema}.period_at(p_per, p_now);
    if v_row.ends_at <= p_now then -- guard: quota.window-end
      v_row.starts_at := greatest(v_period.starts_at, v_row.ends_at);
      v_row.window_id := {schema}.next_fence(v_row.window_id, p_now);
      v_row.used := 0;
      v_row.held := 0;
      v_row.holds_until := null;
      v_row.overdrawn := 0;
      v_row.unlisted := 0;
    end if;
    -- A quota that becomes a stock, or stops being one, keeps what was used.
    v_row.ends_at := v_period.ends_at;
  end if;
  if v_row.holds_until <= p_now then
    -- point: before the expired reservations
    with expired as (
      update {schema}.quota_entry e set
        state = case when e.is_done then 'taken' else 'expired' end::{schema}.quota_state,
        amount = case when e.is_done then e.requested else 0 end
      where e.name = v_row.name and e.subject = v_row.subject and e.state = 'held' and e.expires_at <= p_now
        and e.window_id = v_row.window_id
      returning e.requested, e.amount
    )
    select coalesce(pg_catalog.sum(x.requested), 0), coalesce(pg_catalog.sum(x.amount), 0) into v_expired, v_done from expired x;
    v_row.held := v_row.held - v_expired;
    v_row.used := v_row.used + v_done;
    -- point: before the next expiry
    select pg_catalog.min(e.expires_at) into v_row.holds_until
    from {schema}.quota_entry e
    where e.name = v_row.name and e.subject = v_row.subject and e.state = 'held' and e.expires_at > p_now
      and e.window_id = v_row.window_id;
  end if;
  return v_row;
end
$$;

-- Returns when `p_need` will be free: when enough reservations have expired, or with the next window. Null: never by
-- itself. Locks nothing.
create function {schema}.quota_free_at(p_row {schema}.quota, p_need bigint) returns timestamptz
  language plpgsql stable
  set search_path = ''
as $$
declare
  v_freed bigint := 0;
  v_hold record;
begin
  -- In the order of their ends, and no further than needed: there may be thousands.
  for v_hold in
    select e.requested, e.expires_at from {schema}.quota_entry e
    where e.name = (p_row).name and e.subject = (p_row).subject and e.state = 'held' and not e.is_done
      and e.window_id = (p_row).window_id
    order by e.expires_at
  loop
    v_freed := v_freed + v_hold.requested;
    if v_freed >= p_need then
      return least(v_hold.expires_at, (p_row).ends_at);
    end if;
  end loop;
  return nullif((p_row).ends_at, 'infinity');
end
$$;

-- Returns the row as quota_advance does, but for reading only. The function locks and writes nothing, and the row may
-- be missing.
create function {schema}.quota_preview(p_row {schema}.quota, p_per json, p_now timestamptz) returns {schema}.quota
  language plpgsql stable
  set search_path = ''
as $$
declare
  v_row {schema}.quota := p_row;
  v_period record;
begin
  if v_row.name is null or v_row.ends_at <= p_now or (v_row.ends_at = 'infinity') <> (p_per is null) then
    select * into v_period from {schema}.period_at(p_per, p_now);
    if v_row.name is null or v_row.ends_at <= p_now then
      v_row.starts_at := greatest(v_period.starts_at, v_row.ends_at);
      v_row.used := 0;
      v_row.held := 0;
      v_row.holds_until := null;
      v_row.overdrawn := 0;
    end if;
    v_row.ends_at := v_period.ends_at;
  end if;
  if v_row.holds_until <= p_now then
    -- point: before the expired reservations
    select v_row.held - coalesce(pg_catalog.sum(e.requested), 0) into v_row.held
    from {schema}.quota_entry e
    where e.name = v_row.name and e.subject = v_row.subject and e.state = 'held' and e.expires_at <= p_now
      and not e.is_done and e.window_id = v_row.window_id;
  end if;
  return v_row;
end
$$;

-- Returns the part of each result that describes the row.
create function {schema}.quota_row_result(p_row {schema}.quota, p_now timestamptz) returns json
  language sql stable
as $$
  select pg_catalog.json_build_object(
    'used', (p_row).used + (p_row).overdrawn, 'held', (p_row).held,
    'startsAt', case when (p_row).starts_at > '-infinity' then {schema}.micros((p_row).starts_at) end,
    'endsAt', case when (p_row).ends_at < 'infinity' then {schema}.micros((p_row).ends_at) end,
    'now', {schema}.micros(p_now))
$$;

-- Returns the row that a take would find. The function locks and changes nothing.
create function {schema}.quota_peek(p_name text, p_subject text, p_per json) returns json
  language plpgsql stable
  set search_path = ''
as $$
declare
  v_row {schema}.quota;
  v_now timestamptz := {schema}.clock();
begin
  select q.* into v_row from {schema}.quota q where q.name = p_name and q.subject = p_subject;
  return {schema}.quota_row_result({schema}.quota_preview(v_row, p_per, v_now), v_now);
end
$$;
