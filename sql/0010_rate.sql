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
  -- What is used, in tokens times microseconds of the period: of a bucket what is owed at that time, of a window what was taken in it.
  level bigint not null,
  -- `sliding-window`: what was taken in the window before, in tokens.
  previous bigint not null,
  -- From then on it is as if unused, at the latest.
  expires_at timestamptz not null,
  -- No check: PostgreSQL reads its text anew for every statement, and `level >= 0` made a take slower by a tenth (93 to 104 µs).
  primary key (name, subject, rule)
) with (fillfactor = 50);

-- For maintenance. `expires_at` is put off by an hour at once, so that nearly all updates leave it alone and are HOT.
create index rate_expires_at on {schema}.rate (expires_at);

-- Decides about each cost in order, as if each came alone at that moment. What is refused takes nothing. No cost is above the
-- burst, or the limit of a window, for it would never fit; these times the period are at most 2^51 milliseconds, so that no sum
-- of three such products leaves a bigint.
--
-- A clock that went back stands still here until it has caught up: it must not grant twice what it granted before. Waits are
-- told by the clock as it is, and for what is left when all are decided: then the one who waited is granted, if nobody
-- else came. PL/pgSQL prepares an expression anew in every transaction, by the number of its operators, taken or not: so what
-- is for the refused alone stands apart (40 to 24 µs). No `set search_path`, which would be paid for again: its callers have it.
create function {schema}.rate_decide(
  p_algorithm text, p_limit bigint, p_per_us bigint, p_burst bigint, p_costs bigint[], p_now_us bigint,
  inout at_us bigint, inout level bigint, inout previous bigint, out taken bigint, out until_us bigint, out told text
)
  language plpgsql immutable
as $$
declare
  v_is_bucket boolean := p_algorithm in ('gcra', 'token-bucket');
  v_now_us bigint := greatest(p_now_us, at_us);
  v_room bigint;
  v_told text[];
  v_is_refused boolean[];
begin
  if v_is_bucket then
    -- Compared before it is multiplied: after a long rest the product would leave a bigint.
    level := case when v_now_us - at_us > level / p_limit then 0 else level - (v_now_us - at_us) * p_limit end;
    at_us := v_now_us;
    v_room := p_burst * p_per_us - level;
  else
    if v_now_us - at_us >= p_per_us then
      previous := case
        when p_algorithm = 'sliding-window' and v_now_us - at_us < 2 * p_per_us then level / p_per_us else 0
      end;
      level := 0;
      at_us := v_now_us - v_now_us % p_per_us;
    end if;
    v_room := p_limit * p_per_us - level - previous * (p_per_us - (v_now_us - at_us));
  end if;

  taken := v_room;
  for v_n in 1 .. pg_catalog.cardinality(p_costs) loop
    if p_costs[v_n] * p_per_us <= v_room then
      v_room := v_room - p_costs[v_n] * p_per_us;
      v_told[v_n] := '{"granted":true,"remaining":' || v_room / p_per_us;
    else
      v_told[v_n] := '{"granted":false,"remaining":' || greatest(0, v_room / p_per_us);
      v_is_refused[v_n] := true;
    end if;
  end loop;
  taken := taken - v_room;
  level := level + taken;

  if v_is_refused is not null then
    for v_n in 1 .. pg_catalog.cardinality(p_costs) loop
      if v_is_refused[v_n] then
        v_told[v_n] := v_told[v_n] || ',"retryAfterUs":' || at_us - p_now_us + case
          when v_is_bucket then (p_costs[v_n] * p_per_us - v_room + p_limit - 1) / p_limit
          when p_algorithm = 'fixed-window' then p_per_us
          -- What was taken in the window before fades until it leaves room.
          when (p_limit - p_costs[v_n]) * p_per_us >= level
            then p_per_us - ((p_limit - p_costs[v_n]) * p_per_us - level) / previous
          -- This window is full; in the next its own fades.
          else 2 * p_per_us - (p_limit - p_costs[v_n]) * p_per_us / (level / p_per_us)
        end;
      end if;
    end loop;
  end if;

  if v_is_bucket then
    until_us := at_us + (level + p_limit - 1) / p_limit;
  elsif level > 0 and p_algorithm = 'sliding-window' then
    until_us := at_us + 2 * p_per_us;
  else
    until_us := case when level > 0 or previous > 0 then at_us + p_per_us else p_now_us end;
  end if;
  told := ',"resetUs":' || greatest(0, until_us - p_now_us) || '}';
  told := '[' || pg_catalog.array_to_string(v_told, told || ',') || told || ']';
end
$$;

-- Makes the row of a subject, without a wait: whether another is about to make it shows by a short one. In a function of its
-- own, which gives the caller its `lock_timeout` back, and with a subtransaction, which leaves its transaction usable.
create function {schema}.rate_make_at_once(
  p_name text, p_subject text, p_rule text, p_expires_at timestamptz, out is_busy boolean
)
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
begin
  is_busy := false;
  perform {schema}.bound(2);
  -- point: before the row at once
  insert into {schema}.rate (name, subject, rule, at_us, level, previous, expires_at)
  values (p_name, p_subject, p_rule, 0, 0, 0, p_expires_at)
  on conflict do nothing;
exception when lock_not_available then
  is_busy := true;
end
$$;

-- Makes the row of a subject for which there was none to lock, unless another was first. With `p_wait_ms` 0 it says whether
-- that is busy: its row is there, and was not to be had, or will be. No `set search_path`: its caller has it.
create function {schema}.rate_make(
  p_name text, p_subject text, p_rule text, p_per_us bigint, p_wait_ms integer, out is_busy boolean
)
  language plpgsql volatile
as $$
declare
  -- Longer than most will need it, so that the write that follows does not change it.
  v_expires_at timestamptz := {schema}.clock() + (2 * p_per_us) * interval '1 microsecond' + interval '1 hour';
begin
  is_busy := false;
  if p_wait_ms is distinct from 0 then
    insert into {schema}.rate (name, subject, rule, at_us, level, previous, expires_at)
    values (p_name, p_subject, p_rule, 0, 0, 0, v_expires_at)
    on conflict do nothing;
    return;
  end if;
  -- point: before the look
  perform from {schema}.rate r where r.name = p_name and r.subject = p_subject and r.rule = p_rule;
  is_busy := found or {schema}.rate_make_at_once(p_name, p_subject, p_rule, v_expires_at);
end
$$;

-- Takes several costs, in order, each if it fits; says of each what came of it. All in one write, and none if nothing fits.
--
-- Locks: the row of the subject, before anything of it or of the clock is read. Two callers cannot both get the last: the
-- second finds what the first has left. A row that is missing is made by one of them, by the primary key, and then
-- locked as any other; never `on conflict do update`, which would decide by a clock that was read before the wait. Explored
-- in rate.explore.test.ts.
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
  for v_try in 1 .. 10 loop
    if p_wait_ms is distinct from 0 then
      select r.* into v_row from {schema}.rate r
      where r.name = p_name and r.subject = p_subject and r.rule = p_rule for no key update;
    else
      -- point: before the lock at once
      select r.* into v_row from {schema}.rate r
      where r.name = p_name and r.subject = p_subject and r.rule = p_rule for no key update skip locked;
    end if;
    exit when v_row.name is not null;
    -- point: nothing to lock
    if {schema}.rate_make(p_name, p_subject, p_rule, p_per_us, p_wait_ms) then
      return '{"state": "busy"}';
    end if;
    -- Ours, or another's, or gone again.
    -- point: made
  end loop;
  v_now_us := {schema}.micros({schema}.clock());
  if v_row.name is null then
    raise exception 'a rate was made and forgotten ten times meanwhile' using errcode = 'DB503';
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
  elsif p_wait_ms > 0 then
    -- Alone, and nothing was taken: there is nothing that must outlive a crash, and whoever is refused, perhaps a thousand times a second, need not wait for the disk.
    perform pg_catalog.set_config('synchronous_commit', 'off', true);
  end if;
  return v_then.told;
end
$$;

-- The same in a caller's transaction, which running out of time must leave usable: see quota_take_joined. Whoever is refused leaves no lock behind.
create function {schema}.rate_take_joined(
  p_name text, p_subject text, p_rule text, p_algorithm text, p_limit bigint, p_per_us bigint, p_burst bigint,
  p_costs bigint[], p_wait_ms integer
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
      perform {schema}.bound(v_part_ms);
      v_told := {schema}.rate_take(
        p_name, p_subject, p_rule, p_algorithm, p_limit, p_per_us, p_burst, p_costs, null);
      if not (v_told -> 0 ->> 'granted')::boolean then
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

-- What rate_take says of several subjects, in one transaction, in the order in which they are given, which is the same for everybody. Never
-- waits: a subject that another has locked is `busy`, and is to be asked for by itself. The costs of each are an array in text.
create function {schema}.rate_take_many(
  p_name text, p_subjects text[], p_rule text, p_algorithm text, p_limit bigint, p_per_us bigint, p_burst bigint,
  p_costs text[]
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_told json[] := '{}';
begin
  for v_n in 1 .. pg_catalog.cardinality(p_subjects) loop
    v_told := v_told || {schema}.rate_take(
      p_name, p_subjects[v_n], p_rule, p_algorithm, p_limit, p_per_us, p_burst, p_costs[v_n]::bigint[], 0);
  end loop;
  return pg_catalog.array_to_json(v_told);
end
$$;

-- Takes a cost back, in the transaction that has taken it and holds the row since: so it is still in the same window.
create function {schema}.rate_give_back(p_name text, p_subject text, p_rule text, p_per_us bigint, p_cost bigint)
  returns void
  language plpgsql volatile
  set search_path = ''
as $$
begin
  -- point: before the return
  update {schema}.rate r set level = greatest(0, r.level - p_cost * p_per_us)
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
