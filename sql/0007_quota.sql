-- compatible_from: 1
--
-- How much of a limit a subject has used in the window that it is in. One row for each subject: a new window takes the place of the old
-- one, which nobody asks for any more. Everything that changes a row, or an entry, does so under the lock of the row, but for the lease of
-- a reservation: a transaction of a stranger, which has the row for as long as it likes, must not cost it.

create table {schema}.quota (
  name text collate "C" not null,
  subject text collate "C" not null,
  -- Both bounds, so that a window lasts as it began whatever becomes of its rule. A stock lasts from '-infinity' to 'infinity'.
  starts_at timestamptz not null,
  ends_at timestamptz not null,
  -- Tells windows of a subject apart, as a fence does: two may begin at the same time, if the rule was another or the row was forgotten.
  window_id bigint not null default 0,
  -- The limit that was in force when something was granted last. It may be lower now, which takes nothing away.
  most bigint not null,
  used bigint not null default 0,
  -- Reserved; also what has run out since and was not taken off yet. `holds_until` is when the first may have; what an end has given back
  -- that could not have the row may have before.
  held bigint not null default 0,
  holds_until timestamptz,
  -- Settled too late, beyond the limit.
  over bigint not null default 0,
  -- What of `used` and `over` has no entry: it was taken without an id, or its id is forgotten.
  unlisted bigint not null default 0,
  primary key (name, subject),
  constraint quota_within_its_limit check (used + held <= most and least(used, held, over, unlisted) >= 0)
) with (fillfactor = 70);

-- For maintenance. It changes with the window alone, so that a take is a HOT update.
create index quota_ends_at_idx on {schema}.quota (ends_at) where ends_at < 'infinity';

-- `held`: reserved; `taken`: used; the others are over, each in its way.
create type {schema}.quota_state as enum ('held', 'taken', 'void', 'expired', 'refunded');

-- What was taken or reserved under an id, which makes it happen once, and lets it be given back.
create table {schema}.quota_entry (
  name text collate "C" not null,
  id text collate "C" not null,
  subject text collate "C" not null,
  state {schema}.quota_state not null,
  asked bigint not null,
  -- What it counts for now.
  amount bigint not null,
  -- What of it was settled beyond the limit.
  over bigint not null default 0,
  -- The window that it is charged to.
  starts_at timestamptz not null,
  window_id bigint not null default 0,
  -- A reservation's; null: it was none.
  expires_at timestamptz,
  -- Of a reservation under a lease: the call that has it, and whether its work is done. Then it has no end any more, and is used as soon as
  -- whoever has the row lets go of it. These three may change without the lock of the row.
  holder text,
  is_done boolean not null default false,
  created_at timestamptz not null,
  -- When the id may be forgotten; null: never.
  forget_at timestamptz,
  primary key (name, id)
);

create index quota_entry_held_idx on {schema}.quota_entry (name, subject, window_id, expires_at) where state = 'held';
create index quota_entry_forget_at_idx on {schema}.quota_entry (forget_at) where forget_at is not null;

-- The row as it is at this moment: in a new window if its own is over, and without reservations that have run out. Its lock is held; it is not
-- written here. A window begins where the one before it ends, also if its rule, or the zone, is another by now.
create function {schema}.quota_current(p_row {schema}.quota, p_per json, p_now timestamptz) returns {schema}.quota
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
    select * into v_period from {schema}.period(p_per, p_now);
    if v_row.ends_at <= p_now then
      v_row.starts_at := greatest(v_period.starts_at, v_row.ends_at);
      v_row.window_id := {schema}.next_fence(v_row.window_id, p_now);
      v_row.used := 0;
      v_row.held := 0;
      v_row.holds_until := null;
      v_row.over := 0;
      v_row.unlisted := 0;
    end if;
    -- What becomes a stock, or is none any more, keeps what was used.
    v_row.ends_at := v_period.ends_at;
  end if;
  if v_row.holds_until <= p_now then
    -- point: before what has run out
    with expired as (
      update {schema}.quota_entry e set
        state = case when e.is_done then 'taken' else 'expired' end::{schema}.quota_state,
        amount = case when e.is_done then e.asked else 0 end
      where e.name = v_row.name and e.subject = v_row.subject and e.state = 'held' and e.expires_at <= p_now
        and e.window_id = v_row.window_id
      returning e.asked, e.amount
    )
    select coalesce(pg_catalog.sum(x.asked), 0), coalesce(pg_catalog.sum(x.amount), 0) into v_expired, v_done from expired x;
    v_row.held := v_row.held - v_expired;
    v_row.used := v_row.used + v_done;
    -- point: before the next to run out
    select pg_catalog.min(e.expires_at) into v_row.holds_until
    from {schema}.quota_entry e
    where e.name = v_row.name and e.subject = v_row.subject and e.state = 'held' and e.expires_at > p_now
      and e.window_id = v_row.window_id;
  end if;
  return v_row;
end
$$;

-- When so much more will be free: as soon as enough reservations have run out, or with the next window. Null: not by itself.
create function {schema}.quota_free_at(p_row {schema}.quota, p_need bigint) returns timestamptz
  language plpgsql stable
  set search_path = ''
as $$
declare
  v_freed bigint := 0;
  v_hold record;
begin
  -- In their order, no further than it takes: there may be thousands.
  for v_hold in
    select e.asked, e.expires_at from {schema}.quota_entry e
    where e.name = (p_row).name and e.subject = (p_row).subject and e.state = 'held' and not e.is_done
      and e.window_id = (p_row).window_id
    order by e.expires_at
  loop
    v_freed := v_freed + v_hold.asked;
    if v_freed >= p_need then
      return least(v_hold.expires_at, (p_row).ends_at);
    end if;
  end loop;
  return nullif((p_row).ends_at, 'infinity');
end
$$;

-- As quota_current, without its lock, and for the eye alone: nothing is written, and the row may be none.
create function {schema}.quota_seen(p_row {schema}.quota, p_per json, p_now timestamptz) returns {schema}.quota
  language plpgsql stable
  set search_path = ''
as $$
declare
  v_row {schema}.quota := p_row;
  v_period record;
begin
  if v_row.name is null or v_row.ends_at <= p_now or (v_row.ends_at = 'infinity') <> (p_per is null) then
    select * into v_period from {schema}.period(p_per, p_now);
    if v_row.name is null or v_row.ends_at <= p_now then
      v_row.starts_at := greatest(v_period.starts_at, v_row.ends_at);
      v_row.used := 0;
      v_row.held := 0;
      v_row.holds_until := null;
      v_row.over := 0;
    end if;
    v_row.ends_at := v_period.ends_at;
  end if;
  if v_row.holds_until <= p_now then
    -- point: before what has run out
    select v_row.held - coalesce(pg_catalog.sum(e.asked), 0) into v_row.held
    from {schema}.quota_entry e
    where e.name = v_row.name and e.subject = v_row.subject and e.state = 'held' and e.expires_at <= p_now
      and not e.is_done and e.window_id = v_row.window_id;
  end if;
  return v_row;
end
$$;

-- What every answer says of a row.
create function {schema}.quota_told(p_row {schema}.quota, p_now timestamptz) returns json
  language sql stable
as $$
  select pg_catalog.json_build_object(
    'used', (p_row).used + (p_row).over, 'held', (p_row).held,
    'startsAt', case when (p_row).starts_at > '-infinity' then {schema}.micros((p_row).starts_at) end,
    'endsAt', case when (p_row).ends_at < 'infinity' then {schema}.micros((p_row).ends_at) end,
    'now', {schema}.micros(p_now))
$$;
