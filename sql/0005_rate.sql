-- compatible_from: 1
--
-- One row is what a subject has used of one rate limit. All of it is whole numbers: times in microseconds since 1970, and
-- amounts that no rounding can raise.
--
-- `rule` is the algorithm and the period, which give `level` its meaning: whoever changes them starts anew, while limit and
-- burst may change on the same row.

create table {schema}.rate (
  name text collate "C" not null,
  subject text collate "C" not null,
  rule text collate "C" not null,
  -- The last time that counted; of windows, the beginning of the current one.
  at_us bigint not null,
  -- `gcra` and `token-bucket`: what is owed at that time, in tokens times microseconds of the period. Windows: what was taken in it.
  level bigint not null,
  -- `sliding-window`: what was taken in the window before.
  previous bigint not null,
  -- From then on it is as if unused, at the latest.
  expires_at timestamptz not null,
  primary key (name, subject, rule),
  -- One, and short: PostgreSQL reads the text of each check anew for every statement.
  constraint rate_level check (level >= 0)
) with (fillfactor = 50);

-- For maintenance. `expires_at` is put off by an hour at once, so that nearly all updates leave it alone and are HOT.
create index rate_expires_at on {schema}.rate (expires_at);

-- Decides about each cost in order, as if each came alone at that moment. What is refused takes nothing. No cost is above the
-- capacity, and limit or burst times the period is at most 2^51 milliseconds, so that no sum of three such products leaves a bigint.
--
-- A clock that went back stands still here until it has caught up: it must not grant twice what it granted before. Waits are
-- told by the clock as it is, and for what is left when all are decided: then the one who waited is granted, if nobody
-- else came. No `set search_path`, which would be paid for again: its callers have it.
create function {schema}.rate_decide(
  p_algorithm text, p_limit bigint, p_per_us bigint, p_burst bigint, p_costs bigint[], p_now_us bigint,
  inout at_us bigint, inout level bigint, inout previous bigint, out taken bigint, out until_us bigint, out told text
)
  language plpgsql immutable
as $$
declare
  v_is_bucket boolean := p_algorithm in ('gcra', 'token-bucket');
  v_now_us bigint := greatest(p_now_us, at_us);
  v_start_us bigint;
  v_used bigint;
  v_most bigint := p_limit * p_per_us;
  v_cost bigint;
  v_room bigint;
  v_fits_us bigint;
  v_left bigint[] := '{}';
  v_is_granted boolean[] := '{}';
begin
  if v_is_bucket then
    -- Compared before it is multiplied: after a long rest the product would leave a bigint.
    level := case when v_now_us - at_us > level / p_limit then 0 else level - (v_now_us - at_us) * p_limit end;
    at_us := v_now_us;
    v_used := level;
    v_most := p_burst * p_per_us;
  else
    v_start_us := v_now_us - v_now_us % p_per_us;
    if v_start_us <> at_us then
      previous := case when p_algorithm = 'sliding-window' and v_start_us = at_us + p_per_us then level else 0 end;
      level := 0;
      at_us := v_start_us;
    end if;
    v_used := previous * (p_per_us - (v_now_us - at_us)) + level * p_per_us;
  end if;

  taken := 0;
  foreach v_cost in array p_costs loop
    v_is_granted := v_is_granted || (v_used + v_cost * p_per_us <= v_most);
    if v_used + v_cost * p_per_us <= v_most then
      v_used := v_used + v_cost * p_per_us;
      taken := taken + v_cost;
    end if;
    v_left := v_left || greatest(0, (v_most - v_used) / p_per_us);
  end loop;
  level := level + case when v_is_bucket then taken * p_per_us else taken end;

  until_us := case
    when v_is_bucket then at_us + (level + p_limit - 1) / p_limit
    when level > 0 and p_algorithm = 'sliding-window' then at_us + 2 * p_per_us
    when level > 0 or previous > 0 then at_us + p_per_us
    else p_now_us
  end;
  told := '';
  for v_n in 1 .. pg_catalog.cardinality(p_costs) loop
    if v_is_granted[v_n] then
      v_fits_us := null;
    elsif v_is_bucket then
      v_fits_us := at_us + (v_used + p_costs[v_n] * p_per_us - v_most + p_limit - 1) / p_limit;
    elsif p_algorithm = 'fixed-window' then
      v_fits_us := at_us + p_per_us;
    else
      v_room := p_limit - level - p_costs[v_n];
      v_fits_us := case
        -- What was taken in the window before fades until it leaves room.
        when v_room >= 0 then at_us + p_per_us - v_room * p_per_us / previous
        -- This window is full; in the next its own fades.
        else at_us + 2 * p_per_us - (v_room + level) * p_per_us / level
      end;
    end if;
    told := told || case when v_n > 1 then ',' else '' end
      || '{"granted":' || case when v_is_granted[v_n] then 'true' else 'false' end
      || ',"remaining":' || v_left[v_n]
      || coalesce(',"retryAfterUs":' || (v_fits_us - p_now_us), '')
      || ',"resetUs":' || greatest(0, until_us - p_now_us) || '}';
  end loop;
  told := '[' || told || ']';
end
$$;

-- Makes the row of a subject, without a wait: whether another is about to make it shows by a short one. In a function of its
-- own, which gives the caller its `lock_timeout` back, and with a subtransaction, which leaves its transaction usable.
create function {schema}.rate_insert_at_once(
  p_name text, p_subject text, p_rule text, p_expires_at timestamptz, out state text
)
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
begin
  perform {schema}.bound(10);
  -- point: before the row at once
  insert into {schema}.rate (name, subject, rule, at_us, level, previous, expires_at)
  values (p_name, p_subject, p_rule, 0, 0, 0, p_expires_at)
  on conflict do nothing;
  state := case when found then 'made' else 'there' end;
exception when lock_not_available then
  state := 'busy';
end
$$;

-- Locks the row of a subject, and makes it if it is missing; null if that would mean to wait and nobody is to be waited for.
--
-- Locks: that row, nothing else. A row that is missing is made by one of several callers, by the primary key, and is locked by
-- that; the others wait for it, or for its end. Never `on conflict do update`, which would hide how long it has waited.
-- Explored in rate.explore.test.ts. No `set search_path`: its caller has it.
create function {schema}.rate_lock(p_name text, p_subject text, p_rule text, p_per_us bigint, p_wait_ms integer)
  returns {schema}.rate
  language plpgsql volatile
as $$
declare
  v_row {schema}.rate;
  v_expires_at timestamptz;
  v_state text;
begin
  for v_try in 1 .. 10 loop
    if p_wait_ms is distinct from 0 then
      select r.* into v_row from {schema}.rate r
      where r.name = p_name and r.subject = p_subject and r.rule = p_rule for no key update;
    else
      -- point: before the lock at once
      select r.* into v_row from {schema}.rate r
      where r.name = p_name and r.subject = p_subject and r.rule = p_rule for no key update skip locked;
      if not found then
        -- point: nothing to lock at once
        perform from {schema}.rate r where r.name = p_name and r.subject = p_subject and r.rule = p_rule;
        if found then
          return null;
        end if;
      end if;
    end if;
    if v_row.name is not null then
      return v_row;
    end if;

    -- Longer than most will need it, so that the write that follows does not change it.
    v_expires_at := {schema}.clock() + (2 * p_per_us) * interval '1 microsecond' + interval '1 hour';
    if p_wait_ms is distinct from 0 then
      -- point: nothing to lock
      insert into {schema}.rate (name, subject, rule, at_us, level, previous, expires_at)
      values (p_name, p_subject, p_rule, 0, 0, 0, v_expires_at)
      on conflict do nothing;
      v_state := case when found then 'made' else 'there' end;
    else
      v_state := {schema}.rate_insert_at_once(p_name, p_subject, p_rule, v_expires_at);
    end if;
    if v_state = 'made' then
      return row(p_name, p_subject, p_rule, 0, 0, 0, v_expires_at)::{schema}.rate;
    elsif v_state = 'busy' then
      return null;
    end if;
    -- Somebody was first: the next look shows the row, or that it is gone again.
    -- point: there
  end loop;
  raise exception 'a rate was made and forgotten ten times meanwhile' using errcode = 'DB503';
end
$$;

-- Takes several costs, in order, each if it fits; says of each what came of it. All in one write, and none if nothing fits.
--
-- Locks: the row of the subject, before anything of it or of the clock is read. Two callers cannot both get the last: the
-- second finds what the first has left. Explored in rate.explore.test.ts.
--
-- `p_wait_ms`: null leaves the waits to the caller, whose transaction it is; 0 waits for nobody and says `busy`.
create function {schema}.rate_take(
  p_name text, p_subject text, p_rule text, p_algorithm text, p_limit bigint, p_per_us bigint, p_burst bigint,
  p_costs bigint[], p_wait_ms integer
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_row {schema}.rate;
  v_now_us bigint;
  v_until timestamptz;
  v_then record;
begin
  if p_wait_ms > 0 then
    perform {schema}.bound(p_wait_ms);
  end if;
  v_row := {schema}.rate_lock(p_name, p_subject, p_rule, p_per_us, p_wait_ms);
  v_now_us := {schema}.micros({schema}.clock());
  if v_row.name is null then
    return '{"state": "busy"}';
  end if;
  v_then := {schema}.rate_decide(
    p_algorithm, p_limit, p_per_us, p_burst, p_costs, v_now_us, v_row.at_us, v_row.level, v_row.previous);
  if v_then.taken > 0 then
    v_until := timestamptz 'epoch' + v_then.until_us * interval '1 microsecond';
    -- point: before the write
    update {schema}.rate r
    set at_us = v_then.at_us, level = v_then.level, previous = v_then.previous,
      expires_at = case when v_row.expires_at >= v_until then v_row.expires_at else v_until + interval '1 hour' end
    where r.name = p_name and r.subject = p_subject and r.rule = p_rule;
  end if;
  return v_then.told;
end
$$;

-- Takes a cost back, in the transaction that has taken it and holds the row since: so it is still in the same window.
create function {schema}.rate_give_back(p_name text, p_subject text, p_rule text, p_per_us bigint, p_cost bigint)
  returns void
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_amount bigint := case when p_rule like '%-window:%' then p_cost else p_cost * p_per_us end;
begin
  -- point: before the return
  update {schema}.rate r set level = greatest(0, r.level - v_amount)
  where r.name = p_name and r.subject = p_subject and r.rule = p_rule;
end
$$;

-- What is left, without a lock: as if nothing were asked for now.
create function {schema}.rate_peek(
  p_name text, p_subject text, p_rule text, p_algorithm text, p_limit bigint, p_per_us bigint, p_burst bigint
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_row {schema}.rate;
  v_now_us bigint;
begin
  select r.* into v_row from {schema}.rate r
  where r.name = p_name and r.subject = p_subject and r.rule = p_rule;
  v_now_us := {schema}.micros({schema}.clock());
  return ({schema}.rate_decide(
    p_algorithm, p_limit, p_per_us, p_burst, '{0}', v_now_us,
    coalesce(v_row.at_us, 0), coalesce(v_row.level, 0), coalesce(v_row.previous, 0))).told;
end
$$;

-- Removes a batch of rows that are as if unused, for maintenance; returns how many. Nothing depends on it.
--
-- Locks: those rows, skipping what is locked, so it never waits. A row that was used meanwhile and is still needed is not
-- removed: the lock looks at its newest state. Explored in rate.explore.test.ts: "maintenance".
create function {schema}.rate_forget_expired(p_limit integer) returns integer
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz := {schema}.clock();
  v_count integer;
begin
  -- point: before the removal
  delete from {schema}.rate r where r.ctid = any (array(
    select e.ctid from {schema}.rate e where e.expires_at <= v_now order by e.expires_at limit p_limit
    for update skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
