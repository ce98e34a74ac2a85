-- compatible_from: 1
--
-- How what was taken or reserved ends, and is forgotten.

-- Ends an entry: `settle` makes a reservation a take of so much (`p_late` says what if it has run out), `void` gives it back, and so does
-- `refund` with what was taken, to the window that was charged. Each entry is ended once; the same again changes nothing. What is reserved
-- under a lease is ended by the call that has it (`p_holder`), which would else work on without it.
--
-- Locks: the row of the subject, then the entry, in the order of everybody else.
create function {schema}.quota_resolve(
  p_name text, p_id text, p_what text, p_amount bigint, p_late text, p_limit bigint, p_per json, p_wait_ms integer,
  p_holder text default null
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_row {schema}.quota;
  v_old {schema}.quota;
  v_seen {schema}.quota_entry;
  v_entry {schema}.quota_entry;
  v_now timestamptz;
  v_is_late boolean;
  v_is_counted boolean;
  v_is_charged boolean;
  v_back bigint;
  v_beyond bigint;
  v_fits boolean;
begin
  if p_wait_ms > 0 then
    perform {schema}.bound(p_wait_ms);
  end if;
  for v_turn in 1..20 loop
    -- point: before the first look
    select e.* into v_seen from {schema}.quota_entry e where e.name = p_name and e.id = p_id;
    if not found then
      return '{"state": "absent"}';
    end if;
    -- point: before the lock
    select q.* into v_row from {schema}.quota q where q.name = p_name and q.subject = v_seen.subject for no key update;
    -- point: before the lock of the entry
    select e.* into v_entry from {schema}.quota_entry e where e.name = p_name and e.id = p_id for no key update;
    if not found then
      return '{"state": "absent"}';
    end if;
    -- Else the id was forgotten and used anew, or what has run out was settled where no row was, in between: the lock is not of its row.
    exit when v_entry.subject = v_seen.subject and (v_row.name is not null or v_entry.window_id = v_seen.window_id);
    v_entry := null;
  end loop;
  if v_entry.id is null then
    raise lock_not_available using message = 'the id was forgotten and used anew twenty times meanwhile';
  end if;
  v_now := {schema}.clock();
  v_old := v_row;
  if v_entry.state = 'held' and v_entry.is_done then
    v_entry.state := 'taken';
    v_entry.amount := v_entry.asked;
    if v_row.window_id = v_entry.window_id then
      v_row.held := v_row.held - v_entry.asked;
      v_row.used := v_row.used + v_entry.asked;
    end if;
  end if;
  v_is_counted := v_entry.state = 'held';
  v_is_late := v_entry.state = 'expired' or v_entry.state = 'held' and v_entry.expires_at <= v_now;
  if v_is_late then
    v_entry.state := 'expired';
  end if;
  if v_entry.state = 'held' and v_entry.holder is not null and v_entry.holder is distinct from p_holder then
    return {schema}.quota_resolved('leased', v_entry, v_row, p_per, v_now, v_entry.expires_at);
  end if;

  if p_what = 'settle' then
    if v_entry.state = 'taken' and v_entry.expires_at is not null and v_entry.amount = p_amount then
      return {schema}.quota_resolved('settled', v_entry, v_row, p_per, v_now);
    elsif v_entry.state <> 'held' and not v_is_late or v_is_late and p_late = 'fail' then
      return {schema}.quota_resolved('over', v_entry, v_row, p_per, v_now);
    elsif p_amount > v_entry.asked then
      return {schema}.quota_resolved('too much', v_entry, v_row, p_per, v_now);
    end if;
  elsif p_what = 'void' then
    if v_entry.state = 'void' then
      return {schema}.quota_resolved('void', v_entry, v_row, p_per, v_now);
    elsif v_entry.state not in ('held', 'expired') then
      return {schema}.quota_resolved('over', v_entry, v_row, p_per, v_now);
    end if;
  elsif v_entry.state = 'refunded' then
    return {schema}.quota_resolved('already', v_entry, v_row, p_per, v_now);
  elsif v_entry.state <> 'taken' then
    return {schema}.quota_resolved('over', v_entry, v_row, p_per, v_now);
  elsif p_amount > v_entry.amount then
    return {schema}.quota_resolved('too much', v_entry, v_row, p_per, v_now);
  end if;

  if p_what = 'settle' and v_is_late then
    -- It is taken anew, in the window of now; the row may have been forgotten.
    if v_row.name is null then
      -- point: before the row is made
      perform {schema}.quota_take(p_name, v_entry.subject, p_limit, p_per, '{}', null, null, null, null);
      -- point: before the new row
      select q.* into v_row from {schema}.quota q where q.name = p_name and q.subject = v_entry.subject for no key update;
      v_now := {schema}.clock();
    end if;
    v_old := v_row;
    -- Whatever the row says: an end that could not have it has perhaps put this one forward.
    v_row.holds_until := v_now;
    v_row := {schema}.quota_current(v_row, p_per, v_now);
    v_fits := p_amount = 0 or v_row.used + v_row.over + v_row.held + p_amount <= p_limit;
    v_beyond := case when v_fits then 0 else p_amount end;
    if v_fits or p_late = 'overdraw' then
      v_entry.state := 'taken';
      v_entry.amount := p_amount;
      v_entry.over := v_beyond;
      -- Its id is known as long after the window that pays as it would have been after its own; a stock has none.
      if pg_catalog.isfinite(v_entry.starts_at) and pg_catalog.isfinite(v_row.starts_at) then
        v_entry.forget_at := v_entry.forget_at + (v_row.starts_at - v_entry.starts_at);
      end if;
      v_entry.starts_at := v_row.starts_at;
      v_entry.window_id := v_row.window_id;
      v_row.most := case when v_fits and p_amount > 0 then p_limit else v_row.most end;
      v_row.used := v_row.used + p_amount - v_beyond;
      v_row.over := v_row.over + v_beyond;
    end if;
  else
    -- What it is charged to; if that window is over, there is nothing left of it to be changed.
    v_fits := true;
    v_is_charged := coalesce(v_row.window_id = v_entry.window_id, false);
    if p_what = 'refund' then
      v_back := coalesce(p_amount, v_entry.amount);
      v_beyond := least(v_entry.over, v_back);
      if v_is_charged then
        v_row.used := v_row.used - (v_back - v_beyond);
        v_row.over := v_row.over - v_beyond;
      end if;
      v_entry.state := 'refunded';
      v_entry.amount := v_entry.amount - v_back;
      v_entry.over := v_entry.over - v_beyond;
    else
      v_entry.state := case p_what when 'settle' then 'taken' else 'void' end;
      v_entry.amount := case p_what when 'settle' then p_amount else 0 end;
      if v_is_charged and v_is_counted then
        v_row.held := v_row.held - v_entry.asked;
        v_row.used := v_row.used + v_entry.amount;
      end if;
    end if;
  end if;
  if v_fits or p_late = 'overdraw' then
    -- point: before the entry is written
    update {schema}.quota_entry e
    set state = v_entry.state, amount = v_entry.amount, over = v_entry.over, starts_at = v_entry.starts_at,
      window_id = v_entry.window_id, forget_at = v_entry.forget_at
    where e.name = p_name and e.id = p_id;
  end if;
  if v_row is distinct from v_old then
    -- point: before the write
    update {schema}.quota q set
      starts_at = v_row.starts_at, ends_at = v_row.ends_at, window_id = v_row.window_id, most = v_row.most,
      used = v_row.used, held = v_row.held, holds_until = v_row.holds_until, over = v_row.over, unlisted = v_row.unlisted
    where q.name = p_name and q.subject = v_entry.subject;
  end if;
  if not (v_fits or p_late = 'overdraw') then
    return {schema}.quota_resolved('exceeded', v_entry, v_row, p_per, v_now,
      case when p_amount <= p_limit
        then {schema}.quota_free_at(v_row, v_row.used + v_row.over + v_row.held + p_amount - p_limit) end);
  end if;
  return {schema}.quota_resolved(
    case p_what when 'settle' then 'settled' when 'void' then 'void' else 'refunded' end, v_entry, v_row, p_per, v_now);
end
$$;

create function {schema}.quota_resolved(
  p_state text, e {schema}.quota_entry, p_row {schema}.quota, p_per json, p_now timestamptz,
  p_free_at timestamptz default null
)
  returns json
  language sql stable
as $$
  select pg_catalog.json_build_object(
    'state', p_state, 'was', e.state, 'subject', e.subject, 'asked', e.asked, 'amount', e.amount, 'over', e.over,
    'row', case when (p_row).name is not null
      then {schema}.quota_told({schema}.quota_seen(p_row, p_per, p_now), p_now) end,
    'freeInUs', {schema}.micros(p_free_at) - {schema}.micros(p_now))
$$;

-- The same in a caller's transaction; see quota_take_joined.
create function {schema}.quota_resolve_joined(
  p_name text, p_id text, p_what text, p_amount bigint, p_late text, p_limit bigint, p_per json, p_wait_ms integer
)
  returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
declare
  v_left_ms integer := {schema}.bounded_wait(p_wait_ms);
  v_parts integer := greatest(1, ceil(v_left_ms / 75.0));
  v_wait_end timestamptz := {schema}.wait_end();
  v_part_ms integer;
  v_told json;
begin
  for v_n in 1..v_parts loop
    v_part_ms := {schema}.part_of_wait(v_left_ms, v_parts - v_n + 1);
    begin
      v_told := {schema}.quota_resolve(p_name, p_id, p_what, p_amount, p_late, p_limit, p_per, v_part_ms);
      if v_told ->> 'state' not in ('settled', 'void', 'refunded') then
        -- Whoever changes nothing leaves no lock behind.
        raise exception 'nothing was changed' using errcode = 'DIB02';
      end if;
      return v_told;
    exception
      when sqlstate 'DIB02' then
        return v_told;
      when lock_not_available then
        v_left_ms := {schema}.left_of_wait(v_left_ms - v_part_ms, v_wait_end);
        exit when v_left_ms <= 0;
    end;
  end loop;
  return '{"state": "busy"}';
end
$$;

-- What a take would find, without locking or changing anything.
create function {schema}.quota_peek(p_name text, p_subject text, p_per json) returns json
  language plpgsql stable
  set search_path = ''
as $$
declare
  v_row {schema}.quota;
  v_now timestamptz := {schema}.clock();
begin
  select q.* into v_row from {schema}.quota q where q.name = p_name and q.subject = p_subject;
  return {schema}.quota_told({schema}.quota_seen(v_row, p_per, v_now), v_now);
end
$$;

-- Removes entries whose time is over, and rows whose window has been over for a day: until then a clock that goes back finds them. Never
-- waits: what is locked is in use, and `is_busy` says that something of it is to be removed. So many rows, and so many entries, at most.
create function {schema}.quota_forget(p_limit integer, out count integer, out is_busy boolean)
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz := {schema}.clock();
  v_past integer;
  v_count integer;
begin
  -- point: before the rows
  delete from {schema}.quota q where q.ctid = any (array(
    select r.ctid from {schema}.quota r where r.ends_at <= v_now - interval '1 day' and r.ends_at < 'infinity'
    order by r.ends_at limit p_limit for update skip locked));
  get diagnostics count = row_count;
  -- Of a window that is over nothing counts any more, and it does not come again: its row need not be had.
  -- point: before the entries of the past
  delete from {schema}.quota_entry e where e.ctid = any (array(
    select x.ctid from {schema}.quota_entry x
    where x.forget_at <= v_now and (x.state <> 'held' or x.expires_at <= v_now)
      and not exists (
        select from {schema}.quota q where q.name = x.name and q.subject = x.subject and q.window_id = x.window_id)
    order by x.forget_at limit p_limit for update skip locked));
  get diagnostics v_past = row_count;
  -- The others count, and are taken off the list with the row in hand. Those of rows that others have are passed over.
  -- point: before the entries that count
  with removed as (
    delete from {schema}.quota_entry e where e.ctid = any (array(
      select x.ctid from {schema}.quota_entry x
      join {schema}.quota q on q.name = x.name and q.subject = x.subject and q.window_id = x.window_id
      where x.forget_at <= v_now and (x.state <> 'held' or x.expires_at <= v_now)
      order by x.forget_at limit p_limit - v_past
      for no key update of q skip locked for update of x skip locked))
    returning e.name, e.subject, e.amount, case when e.state = 'held' then e.asked else 0 end as held,
      case when e.state = 'held' and e.is_done then e.asked else 0 end as done, e.state
  ), off as (
    select r.name, r.subject, pg_catalog.count(*) as entries, pg_catalog.sum(r.held) as held, pg_catalog.sum(r.done) as done,
      coalesce(pg_catalog.sum(r.amount) filter (where r.state <> 'held'), 0) as taken
    from removed r group by r.name, r.subject
  ), written as (
    update {schema}.quota q set
      used = q.used + off.done, held = q.held - off.held, unlisted = q.unlisted + off.taken + off.done
    from off where q.name = off.name and q.subject = off.subject
    returning off.entries
  )
  select coalesce(pg_catalog.sum(w.entries), 0) into v_count from written w;
  count := count + v_past + v_count;
  -- point: before the look at what is left
  is_busy := v_past + v_count < p_limit and exists (
    select from {schema}.quota_entry e
    join {schema}.quota q on q.name = e.name and q.subject = e.subject and q.window_id = e.window_id
    where e.forget_at <= v_now and (e.state <> 'held' or e.expires_at <= v_now));
end
$$;

-- Takes back what this very transaction has taken, whose locks it still holds: nobody has seen it.
create function {schema}.quota_untake(p_name text, p_subject text, p_amount bigint, p_id text) returns void
  language plpgsql volatile
  set search_path = ''
as $$
begin
  -- point: before the entry goes
  delete from {schema}.quota_entry e where e.name = p_name and e.id = p_id;
  -- point: before the write
  -- Unless a later claim of this transaction has begun a new window.
  update {schema}.quota q set
    used = greatest(0, q.used - p_amount),
    unlisted = greatest(0, q.unlisted - case when p_id is null then p_amount else 0 end)
  where q.name = p_name and q.subject = p_subject;
end
$$;
