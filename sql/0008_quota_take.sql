-- compatible_from: 1
--
-- Taking of a quota, and reserving: one function decides, and the others call it, each with another way to wait.

-- Takes each amount that fits, in their order, or reserves it (`p_hold_ms`); one that does not fit takes nothing. An amount with an id that is known
-- is not taken again.
--
-- Locks: the row of the subject. So whoever comes second starts from what the first has left, and the clock, which decides on the window,
-- is read under that lock. `p_wait_ms` 0 waits for nobody; null waits as long as the caller's transaction lets it.
create function {schema}.quota_take(
  p_name text, p_subject text, p_limit bigint, p_per json, p_amounts bigint[], p_ids text[], p_hold_ms bigint,
  p_keep_ms bigint, p_wait_ms integer, p_holder text default null
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_row {schema}.quota;
  v_old {schema}.quota;
  v_entry {schema}.quota_entry;
  v_now timestamptz;
  v_amount bigint;
  v_id text;
  v_state text;
  v_free_at timestamptz;
  v_takes json[] := '{}';
begin
  if p_wait_ms > 0 then
    perform {schema}.bound(p_wait_ms);
  end if;
  for v_turn in 1..20 loop
    if p_wait_ms = 0 then
      -- point: before the lock that does not wait
      select q.* into v_row from {schema}.quota q where q.name = p_name and q.subject = p_subject
      for no key update skip locked;
      if not found then
        -- point: before the look
        perform from {schema}.quota q where q.name = p_name and q.subject = p_subject;
        if found then
          return '{"state": "busy"}';
        end if;
      end if;
    else
      -- point: before the lock
      select q.* into v_row from {schema}.quota q where q.name = p_name and q.subject = p_subject for no key update;
    end if;
    exit when v_row.name is not null;
    -- point: before the insert
    v_row := {schema}.quota_insert(p_name, p_subject, p_limit, p_per);
    exit when v_row.name is not null;
  end loop;
  if v_row.name is null then
    raise lock_not_available using message = 'the quota was made and forgotten twenty times meanwhile';
  end if;

  v_now := {schema}.clock();
  v_old := v_row;
  if v_row.ends_at <= v_now or v_row.holds_until <= v_now or (v_row.ends_at = 'infinity') <> (p_per is null) then
    v_row := {schema}.quota_current(v_row, p_per, v_now);
  end if;
  for v_n in 1..pg_catalog.cardinality(p_amounts) loop
    v_amount := p_amounts[v_n];
    v_id := p_ids[v_n];
    v_state := 'taken';
    v_free_at := null;
    if v_id is not null then
      -- point: before the entry
      select e.* into v_entry from {schema}.quota_entry e where e.name = p_name and e.id = v_id;
      if found then
        v_state := case
          when v_entry.subject <> p_subject or v_entry.asked <> v_amount
            or (v_entry.expires_at is null) <> (p_hold_ms is null)
            -- What is reserved under a lease is not anybody's to settle.
            or p_hold_ms is not null and p_holder is null and v_entry.holder is not null then 'mismatch'
          else 'known'
        end;
      end if;
    end if;
    for v_look in 1..2 loop
      exit when v_state <> 'taken' or v_row.used + v_row.over + v_row.held + v_amount <= p_limit;
      v_free_at := {schema}.quota_free_at(v_row, v_row.used + v_row.over + v_row.held + v_amount - p_limit);
      if v_free_at <= v_now and v_look = 1 then
        -- Given back by an end that could not have the row, which therefore does not say so; unless it is renewed in between.
        v_row.holds_until := v_now;
        v_row := {schema}.quota_current(v_row, p_per, v_now);
        v_free_at := null;
      else
        v_state := 'refused';
      end if;
    end loop;
    if v_state = 'taken' and v_id is not null then
      -- point: before the new entry
      insert into {schema}.quota_entry as e
        (name, id, subject, state, asked, amount, starts_at, window_id, expires_at, holder, created_at,
         forget_at)
      values
        (p_name, v_id, p_subject, case when p_hold_ms is null then 'taken' else 'held' end::{schema}.quota_state, v_amount,
         v_amount, v_row.starts_at, v_row.window_id, v_now + p_hold_ms * interval '1 millisecond', p_holder, v_now,
         -- Under a lease whoever has outlived it is to find it: a day longer than that, at least.
         greatest(case when v_row.ends_at < 'infinity' then v_row.ends_at else v_now end + p_keep_ms * interval '1 millisecond',
           case when p_holder is not null and p_keep_ms is not null
             then v_now + p_hold_ms * interval '1 millisecond' + interval '1 day' end))
      on conflict do nothing
      returning e.* into v_entry;
      if not found then
        -- Another subject has used the id just now.
        v_state := 'mismatch';
      end if;
    end if;
    if v_state = 'taken' then
      v_row.most := p_limit;
      if p_hold_ms is null then
        v_row.used := v_row.used + v_amount;
        v_row.unlisted := v_row.unlisted + case when v_id is null then v_amount else 0 end;
      else
        v_row.held := v_row.held + v_amount;
        v_row.holds_until := least(v_row.holds_until, v_entry.expires_at);
      end if;
    end if;
    v_takes := v_takes || pg_catalog.json_build_object(
      'state', v_state, 'used', v_row.used + v_row.over, 'held', v_row.held,
      'freeInUs', {schema}.micros(v_free_at) - {schema}.micros(v_now),
      'entry', case
        when v_state = 'known' and v_entry.state = 'held' and v_entry.expires_at <= v_now then 'expired'
        when v_state = 'known' then v_entry.state::text
      end,
      'expiresAt', case when p_hold_ms is not null then {schema}.micros(v_entry.expires_at) end);
  end loop;
  if v_row is distinct from v_old then
    -- point: before the write
    update {schema}.quota q set
      starts_at = v_row.starts_at, ends_at = v_row.ends_at, window_id = v_row.window_id, most = v_row.most,
      used = v_row.used, held = v_row.held, holds_until = v_row.holds_until, over = v_row.over, unlisted = v_row.unlisted
    where q.name = p_name and q.subject = p_subject;
  end if;
  return pg_catalog.json_build_object(
    'state', 'done', 'row', {schema}.quota_told(v_row, v_now), 'takes', pg_catalog.array_to_json(v_takes));
end
$$;

-- Makes the row of a subject, with nothing used; null if another did, or may be about to.
create function {schema}.quota_insert(p_name text, p_subject text, p_limit bigint, p_per json)
  returns {schema}.quota
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_row {schema}.quota;
  v_period record;
  v_now timestamptz := {schema}.clock();
begin
  select * into v_period from {schema}.period(p_per, v_now);
  -- point: before the new row
  insert into {schema}.quota as q (name, subject, starts_at, ends_at, window_id, most)
  values (p_name, p_subject, v_period.starts_at, v_period.ends_at, {schema}.next_fence(0, v_now), p_limit)
  on conflict do nothing
  returning q.* into v_row;
  return v_row;
end
$$;

-- The same without a wait: `busy` if another transaction holds the row, or is about to make it, or to use an id. That it is about to shows by a short
-- wait, whose end is undone here; the caller keeps its own `lock_timeout`.
create function {schema}.quota_take_at_once(
  p_name text, p_subject text, p_limit bigint, p_per json, p_amounts bigint[], p_ids text[], p_hold_ms bigint,
  p_keep_ms bigint, p_holder text, p_wait_ms integer
)
  returns json
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
begin
  perform {schema}.bound(p_wait_ms);
  return {schema}.quota_take(
    p_name, p_subject, p_limit, p_per, p_amounts, p_ids, p_hold_ms, p_keep_ms, 0, p_holder);
exception when lock_not_available then
  return '{"state": "busy"}';
end
$$;

-- The same in a caller's transaction, which running out of time must leave usable: hence subtransactions, and parts of the wait, since
-- `lock_timeout` is for one holder.
create function {schema}.quota_take_joined(
  p_name text, p_subject text, p_limit bigint, p_per json, p_amounts bigint[], p_ids text[], p_hold_ms bigint,
  p_keep_ms bigint, p_wait_ms integer
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
      v_told := {schema}.quota_take(
        p_name, p_subject, p_limit, p_per, p_amounts, p_ids, p_hold_ms, p_keep_ms, v_part_ms);
      if v_told -> 'takes' -> 0 ->> 'state' <> 'taken' then
        -- Whoever takes nothing leaves no lock behind.
        raise exception 'nothing was taken' using errcode = 'DIB02';
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

-- The same for amounts without ids, as a busy subject sees them by the thousand: if the row is there, its window lasts, nothing that was reserved
-- has run out, and all of them fit; or the only one does not, and nothing is reserved that might run out. Null: it is not so plain, and
-- quota_take decides.
--
-- The update itself locks, compares and writes: with the lock in a statement of its own it takes half as long again. Whether the window
-- has lasted until then, the clock says that is read under the lock; if not, it is undone there. What does not fit is only
-- looked at: it writes nothing, and waits for nobody.
create function {schema}.quota_take_plain(
  p_name text, p_subject text, p_limit bigint, p_per json, p_amounts bigint[], p_wait_ms integer
)
  returns text
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_used bigint;
  v_held bigint;
  v_starts_at timestamptz;
  v_ends_at timestamptz;
  v_until timestamptz;
  v_now timestamptz;
  v_amount bigint;
  v_total bigint := p_amounts[1];
  v_takes text := '';
begin
  perform {schema}.bound(p_wait_ms);
  for v_n in 2..pg_catalog.cardinality(p_amounts) loop
    v_total := v_total + p_amounts[v_n];
  end loop;
  -- point: before the write
  update {schema}.quota q set used = q.used + v_total, unlisted = q.unlisted + v_total, most = p_limit
  where q.name = p_name and q.subject = p_subject and q.used + q.over + q.held + v_total <= p_limit
    and (q.ends_at = 'infinity') = (p_per is null)
  returning q.used + q.over, q.held, q.starts_at, q.ends_at, least(q.ends_at, q.holds_until)
  into v_used, v_held, v_starts_at, v_ends_at, v_until;
  if found then
    if v_until <= {schema}.clock() then
      -- point: too late
      update {schema}.quota q set used = q.used - v_total, unlisted = q.unlisted - v_total
      where q.name = p_name and q.subject = p_subject;
      return null;
    end if;
    v_used := v_used - v_total;
    foreach v_amount in array p_amounts loop
      v_used := v_used + v_amount;
      v_takes := v_takes || ',{"state":"taken","used":' || v_used || ',"held":' || v_held || '}';
    end loop;
  elsif pg_catalog.cardinality(p_amounts) = 1 then
    v_now := {schema}.clock();
    -- point: before the look
    select q.used + q.over, q.held, q.starts_at, q.ends_at into v_used, v_held, v_starts_at, v_ends_at
    from {schema}.quota q
    where q.name = p_name and q.subject = p_subject and q.used + q.over + q.held + v_total > p_limit
      and q.ends_at > v_now and q.holds_until is null and (q.ends_at = 'infinity') = (p_per is null);
    if not found then
      return null;
    end if;
    v_takes := ',{"state":"refused","used":' || v_used || ',"held":' || v_held || ',"freeInUs":'
      || coalesce(({schema}.micros(nullif(v_ends_at, 'infinity')) - {schema}.micros(v_now))::text, 'null') || '}';
  else
    return null;
  end if;
  return '{"state":"done","takes":[' || pg_catalog.substr(v_takes, 2) || '],"row":{"used":' || v_used || ',"held":' || v_held
    || case when v_starts_at > '-infinity' then ',"startsAt":' || {schema}.micros(v_starts_at) else '' end
    || case when v_ends_at < 'infinity' then ',"endsAt":' || {schema}.micros(v_ends_at) else '' end || '}}';
end
$$;

-- What quota_take says of several subjects, in one transaction, in the order in which they are given, which is the same for everybody. Never waits:
-- a subject that another has locked is `busy`, and is to be asked for by itself. If one is about to be made, or an id to be used, all fail, and
-- each is to be asked for by itself.
create function {schema}.quota_take_many(p_name text, p_asked json, p_keep_ms bigint) returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_one json;
  v_told json[] := '{}';
begin
  perform {schema}.bound(10);
  for v_one in select a.value from pg_catalog.json_array_elements(p_asked) a loop
    v_told := v_told || {schema}.quota_take(
      p_name, v_one ->> 'subject', (v_one ->> 'limit')::bigint, v_one -> 'per', (v_one ->> 'amounts')::bigint[],
      (v_one ->> 'ids')::text[], null, p_keep_ms, 0);
  end loop;
  return pg_catalog.array_to_json(v_told);
end
$$;
