-- compatible_from: 1
--
-- Rate limits. One row is the use of one rate limit by one subject. All values are whole numbers: times in microseconds
-- since 1970, and amounts that no rounding can raise.
--
-- `rule` is the algorithm and the period, which give `level` its meaning. Another rule starts a new row, while limit
-- and burst may change on the same row.

create table {schema}.rate (
  name text collate "C" not null,
  subject text collate "C" not null,
  rule text collate "C" not null,
  -- The last time that counted. For windows: the beginning of the current one.
  at_us bigint not null,
  -- The use, in tokens times microseconds of the period. For a bucket: the debt at that time. For a window: the amount
  -- that was taken in it.
  level bigint not null,
  -- `sliding-window`: the amount that was taken in the previous window, in tokens.
  previous bigint not null,
  -- From this time on, at the latest, the row equals an unused one.
  expires_at timestamptz not null,
  -- No check: PostgreSQL parses its text for every statement, and `level >= 0` made a take slower by a tenth (93 to 104
  -- µs).
  primary key (name, subject, rule) -- guard: rate.subject-unique
) with (fillfactor = 50);

-- For maintenance. `expires_at` moves by an hour at once, so that nearly all updates leave it alone and are HOT.
create index rate_expires_at_idx on {schema}.rate (expires_at);

-- Decides about each cost in order, as if each came alone at that moment. A refused cost takes nothing. No cost is
-- above the burst, or above the limit of a window, because it would never fit. The burst or limit times the period is
-- at most 2^51 milliseconds, so that no sum of three such products overflows a bigint.
--
-- A clock that went back stands still here until it has caught up, because it must not grant the same capacity twice.
-- Waits are computed by the real clock, from the amount that is left after all decisions: if no other caller comes, a
-- caller that waited so long is granted. PL/pgSQL prepares an expression in every transaction, at a cost per operator,
-- so the code for refusals stands apart (40 to 24 µs). The function has no `set search_path`, which would cost time:
-- its callers set it.
create function {schema}.rate_decide(
  p_algorithm text, p_limit bigint, p_per_us bigint, p_burst bigint, p_costs bigint[], p_now_us bigint,
  inout at_us bigint, inout level bigint, inout previous bigint, out taken bigint, out until_us bigint, out results text
)
  language plpgsql immutable
as $$
declare
  v_is_bucket boolean := p_algorithm in ('gcra', 'token-bucket');
  v_now_us bigint := greatest(p_now_us, at_us); -- guard: rate.time-forward
  v_room bigint;
  v_result text[];
  v_is_refused boolean[];
begin
  if v_is_bucket then
    -- Compared before it is multiplied: after a long pause the product would overflow.
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
    if p_costs[v_n] * p_per_us <= v_room then -- guard: rate.limit, rate.batch-sum
      v_room := v_room - p_costs[v_n] * p_per_us;
      v_result[v_n] := '{"granted":true,"remaining":' || v_room / p_per_us;
    else
      v_result[v_n] := '{"granted":false,"remaining":' || greatest(0, v_room / p_per_us);
      v_is_refused[v_n] := true;
    end if;
  end loop;
  taken := taken - v_room;
  level := level + taken;

  if v_is_refused is not null then
    for v_n in 1 .. pg_catalog.cardinality(p_costs) loop
      if v_is_refused[v_n] then
        v_result[v_n] := v_result[v_n] || ',"retryAfterUs":' || at_us - p_now_us + case
          when v_is_bucket then (p_costs[v_n] * p_per_us - v_room + p_limit - 1) / p_limit
          when p_algorithm = 'fixed-window' then p_per_us
          -- The use of the previous window fades until it leaves room.
          when (p_limit - p_costs[v_n]) * p_per_us >= level
            then p_per_us - ((p_limit - p_costs[v_n]) * p_per_us - level) / previous
          -- The current window is full. In the next window its use fades.
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
  results := ',"resetUs":' || greatest(0, until_us - p_now_us) || '}';
  results := '[' || pg_catalog.array_to_string(v_result, results || ',') || results || ']';
end
$$;

-- Inserts the row of a subject with a wait of 2 ms. Only a wait shows whether another transaction is about to insert
-- the row. The insert has a function of its own, so that the caller gets its `lock_timeout` back, with a
-- subtransaction, which leaves the caller's transaction usable.
create function {schema}.rate_insert_no_wait(
  p_name text, p_subject text, p_rule text, p_expires_at timestamptz, out is_busy boolean
)
  language plpgsql volatile
  set lock_timeout = 0
  set search_path = ''
as $$
begin
  is_busy := false;
  perform {schema}.limit_lock_wait(2);
  -- point: before the insert without a wait
  insert into {schema}.rate (name, subject, rule, at_us, level, previous, expires_at)
  values (p_name, p_subject, p_rule, 0, 0, 0, p_expires_at)
  on conflict do nothing;
exception when lock_not_available then
  is_busy := true;
end
$$;

-- Inserts the row of a subject, unless another call was first: the primary key admits one row. With `p_wait_ms` 0 the
-- function returns whether the row is busy: it exists and is locked, or is about to be inserted. The function has no
-- `set search_path`: its caller sets it.
create function {schema}.rate_insert(
  p_name text, p_subject text, p_rule text, p_per_us bigint, p_wait_ms integer, out is_busy boolean
)
  language plpgsql volatile
as $$
declare
  -- Longer than most rows need, so that the next write does not change the expiry.
  v_expires_at timestamptz := {schema}.clock() + (2 * p_per_us) * interval '1 microsecond' + interval '1 hour';
begin
  is_busy := false;
  if p_wait_ms is distinct from 0 then
    insert into {schema}.rate (name, subject, rule, at_us, level, previous, expires_at)
    values (p_name, p_subject, p_rule, 0, 0, 0, v_expires_at)
    on conflict do nothing;
    return;
  end if;
  -- point: before the read
  perform from {schema}.rate r where r.name = p_name and r.subject = p_subject and r.rule = p_rule;
  is_busy := found or {schema}.rate_insert_no_wait(p_name, p_subject, p_rule, v_expires_at);
end
$$;

-- Takes several costs, in order, each if it fits, and returns a result for each. All are taken in one write. If none
-- fits, nothing is written.
--
-- Locks: the row of the subject, before the function reads the row or the clock. Two callers cannot both take the last
-- unit: the second locks the row later and finds the use that the first has written. A missing row is inserted by one
-- of them, by the primary key, and then locked like any other. The function never uses `on conflict do update`, which
-- would decide by a clock read before the wait. Explored in rate.explore.test.ts.
--
-- `p_wait_ms`: null leaves the waits to the caller's transaction. With 0 the function does not wait, and returns
-- `busy`.
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
  v_decision record;
begin
  if p_wait_ms > 0 then
    perform {schema}.limit_lock_wait(p_wait_ms); -- guard: rate.wait-bound
  end if;
  -- guard: rate.clock {
  for v_try in 1 .. 10 loop
    if p_wait_ms is distinct from 0 then
      select r.* into v_row from {schema}.rate r
      where r.name = p_name and r.subject = p_subject and r.rule = p_rule for no key update; -- guard: rate.row-lock
    else
      -- point: before the lock without a wait
      select r.* into v_row from {schema}.rate r
      where r.name = p_name and r.subject = p_subject and r.rule = p_rule for no key update skip locked; -- guard: rate.no-wait-row-lock, rate.no-wait-skip-locked
    end if;
    exit when v_row.name is not null;
    -- point: no row found
    if {schema}.rate_insert(p_name, p_subject, p_rule, p_per_us, p_wait_ms) then
      return '{"state": "busy"}';
    end if;
    -- The row was inserted by this call or by another, or was deleted again.
    -- point: row inserted
  end loop;
  v_now_us := {schema}.micros({schema}.clock());
  -- guard: rate.clock }
  if v_row.name is null then
    raise exception 'a rate was made and forgotten ten times meanwhile' using errcode = 'DB503';
  end if;
  v_decision := {schema}.rate_decide(
    p_algorithm, p_limit, p_per_us, p_burst, p_costs, v_now_us, v_row.at_us, v_row.level, v_row.previous);
  if v_decision.taken > 0 then
    v_until := timestamptz 'epoch' + v_decision.until_us * interval '1 microsecond';
    -- point: before the write
    update {schema}.rate r
    set at_us = v_decision.at_us, level = v_decision.level, previous = v_decision.previous,
      expires_at = case when v_row.expires_at >= v_until then v_row.expires_at else v_until + interval '1 hour' end
    where r.name = p_name and r.subject = p_subject and r.rule = p_rule;
  elsif p_wait_ms > 0 then
    -- A refusal writes nothing that must survive a crash, so a subject that is refused a thousand times a second need not
    -- wait for the disk.
    perform pg_catalog.set_config('synchronous_commit', 'off', true);
  end if;
  return v_decision.results;
end
$$;

-- Runs rate_take in a caller's transaction, with the waits of quota_take_joined. A timeout must leave that transaction
-- usable. A refused call leaves no lock behind.
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
  v_left_ms integer := {schema}.wait_below_statement_timeout(p_wait_ms);
  v_parts integer := greatest(1, ceil(v_left_ms / 75.0));
  v_wait_deadline timestamptz := {schema}.wait_deadline();
  v_part_ms integer;
  v_result json;
begin
  for v_n in 1..v_parts loop
    v_part_ms := {schema}.wait_slice_ms(v_left_ms, v_parts - v_n + 1);
    begin
      perform {schema}.limit_lock_wait(v_part_ms);
      v_result := {schema}.rate_take(
        p_name, p_subject, p_rule, p_algorithm, p_limit, p_per_us, p_burst, p_costs, null);
      if not (v_result -> 0 ->> 'granted')::boolean then
        raise exception 'nothing was taken' using errcode = 'DIB02';
      end if;
      return v_result;
    exception
      when sqlstate 'DIB02' then
        return v_result;
      when lock_not_available then
        v_left_ms := {schema}.remaining_wait_ms(v_left_ms - v_part_ms, v_wait_deadline);
        exit when v_left_ms <= 0;
    end;
  end loop;
  return '{"state": "busy"}';
end
$$;

-- Runs rate_take for several subjects in one transaction. The costs of each subject are an array, written as a string.
--
-- Locks: the rows of the subjects in the given order, which is the same for every caller. The function never waits: a
-- subject that another transaction has locked is `busy`, and the caller takes from it alone.
create function {schema}.rate_take_many(
  p_name text, p_subjects text[], p_rule text, p_algorithm text, p_limit bigint, p_per_us bigint, p_burst bigint,
  p_costs text[]
)
  returns json
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_result json[] := '{}';
begin
  for v_n in 1 .. pg_catalog.cardinality(p_subjects) loop
    v_result := v_result || {schema}.rate_take(
      p_name, p_subjects[v_n], p_rule, p_algorithm, p_limit, p_per_us, p_burst, p_costs[v_n]::bigint[], 0);
  end loop;
  return pg_catalog.array_to_json(v_result);
end
$$;

-- Undoes a take of the current transaction, which has held the row lock since, so the window is still the same.
create function {schema}.rate_refund(p_name text, p_subject text, p_rule text, p_per_us bigint, p_cost bigint)
  returns void
  language plpgsql volatile
  set search_path = ''
as $$
begin
  -- point: before the refund
  update {schema}.rate r set level = greatest(0, r.level - p_cost * p_per_us) -- guard: rate.return-floor
  where r.name = p_name and r.subject = p_subject and r.rule = p_rule;
end
$$;

-- Returns the amount that is left, as a request of cost 0 would find it. Locks nothing.
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
    coalesce(v_row.at_us, 0), coalesce(v_row.level, 0), coalesce(v_row.previous, 0))).results;
end
$$;

-- Deletes a batch of rows that equal unused ones, for maintenance, and returns their number. No other function depends
-- on this deletion.
--
-- Locks: those rows, skipping locked ones, so the function never waits. A row that was used meanwhile is not deleted:
-- PostgreSQL rereads the row when it locks it. Explored in rate.explore.test.ts: "maintenance".
create function {schema}.rate_delete_expired(p_limit integer) returns integer
  language plpgsql volatile
  set search_path = ''
as $$
declare
  v_now timestamptz := {schema}.clock();
  v_count integer;
begin
  -- point: before the removal
  delete from {schema}.rate r where r.ctid = any (array(
    select e.ctid from {schema}.rate e where e.expires_at <= v_now order by e.expires_at limit p_limit -- guard: rate.maintenance-expired
    for update skip locked)); -- guard: rate.maintenance-lock
  get diagnostics v_count = row_count;
  return v_count;
end
$$;
