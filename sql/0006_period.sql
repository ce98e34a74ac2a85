-- compatible_from: 1
--
-- Which period of a calendar, of an interval or of a list of slots a moment lies in. A rule is JSON: {"unit": "day", "zone": "Europe/Berlin"},
-- {"everyUs": 60000000, "fromUs": 0}, {"slotsUs": [1, 2, 3]}. Null is one period without an end.

-- The first moment at which the clocks of a zone show this time, or a later one if they skip it. Where they show it twice, because they were
-- put back, PostgreSQL means the second; a day that has such an hour at its start would begin an hour after its first moment. For one that
-- they skip it means as long after the skip as it would have been; a day whose midnight is skipped would begin after its first moment too.
create function {schema}.first_moment(p_local timestamp, p_zone text) returns timestamptz
  language plpgsql stable
  set search_path = ''
as $$
declare
  v_later timestamptz := p_local at time zone p_zone;
  v_skipped interval := (v_later at time zone p_zone) - p_local;
  v_earlier timestamptz;
begin
  if v_skipped > interval '0' then
    -- point: before the skip
    return (
      select pg_catalog.min(t)
      from pg_catalog.generate_series(v_later - v_skipped, v_later, interval '1 minute') t
      where (t at time zone p_zone) >= p_local);
  end if;
  v_earlier := v_later - (((v_later - interval '3 hours') at time zone p_zone) - (p_local - interval '3 hours'));
  return case when (v_earlier at time zone p_zone) = p_local then least(v_earlier, v_later) else v_later end;
end
$$;

-- The hour that a moment lies in, by the clocks of a zone: of sixty minutes, unless they are moved in the midst of it, as those of Lord Howe
-- Island are, by half an hour. That ends one hour, and begins the next.
create function {schema}.hour_of(
  p_at timestamptz, p_zone text, out starts_at timestamptz, out ends_at timestamptz
)
  language plpgsql stable
  set search_path = ''
as $$
declare
  -- How far the clocks are from UTC.
  v_offset interval := (p_at at time zone p_zone) - (p_at at time zone 'UTC');
  v_last timestamptz;
begin
  starts_at := pg_catalog.date_trunc('hour', p_at, p_zone);
  ends_at := starts_at + interval '1 hour';
  v_last := ends_at - interval '1 microsecond';
  if (starts_at at time zone p_zone) - (starts_at at time zone 'UTC') <> v_offset then
    select pg_catalog.min(t) into starts_at
    from pg_catalog.generate_series(starts_at, p_at, interval '1 minute') t
    where (t at time zone p_zone) - (t at time zone 'UTC') = v_offset;
  end if;
  if (v_last at time zone p_zone) - (v_last at time zone 'UTC') <> v_offset then
    -- point: before the end
    select pg_catalog.min(t) into ends_at
    from pg_catalog.generate_series(pg_catalog.date_trunc('minute', p_at), ends_at, interval '1 minute') t
    where t > p_at and (t at time zone p_zone) - (t at time zone 'UTC') <> v_offset;
  end if;
end
$$;

-- Microseconds since 1970 as a time, to the last of them.
create function {schema}.moment(us bigint) returns timestamptz
  language sql stable
  as $$ select pg_catalog.to_timestamp(0) operator(pg_catalog.+) (us operator(pg_catalog.*) interval '1 microsecond') $$;

-- `slot` names the period. A day, week or month is named by its date and not by its moment: whoever changes the zone does not get
-- the same day twice. All are null if the list of slots does not reach so far.
create function {schema}.period(
  p_rule json, p_at timestamptz, out slot text, out starts_at timestamptz, out ends_at timestamptz
)
  language plpgsql stable
  set search_path = ''
as $$
declare
  v_unit text := p_rule ->> 'unit';
  v_zone text := p_rule ->> 'zone';
  v_every bigint := (p_rule ->> 'everyUs')::bigint;
  v_from bigint;
  v_at bigint;
  v_local timestamp;
  v_step interval := '1 ' || v_unit;
begin
  if p_rule is null then
    slot := 'ever';
    starts_at := '-infinity';
    ends_at := 'infinity';
  elsif v_every is not null then
    v_from := (p_rule ->> 'fromUs')::bigint;
    v_at := {schema}.micros(p_at) - v_from;
    -- Towards the past, also before the first of them.
    v_at := v_at - ((v_at % v_every) + v_every) % v_every + v_from;
    starts_at := {schema}.moment(v_at);
    ends_at := {schema}.moment(v_at + v_every);
  elsif v_unit = 'hour' then
    -- By its moment: the hour that comes twice is two. Minutes are those of the zone, which may be half an hour off.
    select h.starts_at, h.ends_at into starts_at, ends_at from {schema}.hour_of(p_at, v_zone) h;
  elsif v_unit is not null then
    v_local := pg_catalog.date_trunc(v_unit, p_at at time zone v_zone);
    ends_at := {schema}.first_moment(v_local + v_step, v_zone);
    -- Where the clocks are put back over midnight they show the day before again; the new one has begun all the same.
    if ends_at <= p_at then
      v_local := v_local + v_step;
      ends_at := {schema}.first_moment(v_local + v_step, v_zone);
    end if;
    starts_at := {schema}.first_moment(v_local, v_zone);
    slot := v_unit || ':' || pg_catalog.to_char(
      v_local, case v_unit when 'day' then 'YYYY-MM-DD' when 'week' then 'IYYY-"W"IW' when 'month' then 'YYYY-MM' else 'YYYY' end);
  else
    v_at := {schema}.micros(p_at);
    -- point: before the slots
    select {schema}.moment(pg_catalog.max(s.us::text::bigint) filter (where s.us::text::bigint <= v_at)),
      {schema}.moment(pg_catalog.min(s.us::text::bigint) filter (where s.us::text::bigint > v_at))
    into starts_at, ends_at
    from pg_catalog.json_array_elements(p_rule -> 'slotsUs') s(us);
    if starts_at is null or ends_at is null then
      starts_at := null;
      ends_at := null;
      return;
    end if;
  end if;
  slot := coalesce(slot, coalesce(v_unit, 'slot') || ':'
    || pg_catalog.to_char(starts_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'));
end
$$;
