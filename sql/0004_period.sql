-- compatible_from: 1
--
-- Periods of a calendar, of an interval or of a list of slots. A rule is JSON: {"unit": "day", "zone":
-- "Europe/Berlin"}, {"everyUs": 60000000, "fromUs": 0}, {"slotsUs": [1, 2, 3]}. A rule of null is one period without an
-- end.

-- Returns the first moment at which the clocks of a zone show this local time, or a later time if they skip it.
--
-- When clocks go back, they show a time twice, and PostgreSQL takes the second. A day that starts with such an hour
-- would begin one hour late. For a skipped local time, PostgreSQL counts on from the start of the skip. A day whose
-- midnight is skipped would begin late too.
create function {schema}.first_instant(p_local timestamp, p_zone text) returns timestamptz
  language plpgsql stable
  set search_path = ''
as $$
declare
  v_later timestamptz := p_local at time zone p_zone;
  v_skipped interval := (v_later at time zone p_zone) - p_local;
  v_earlier timestamptz;
begin
  if v_skipped > interval '0' then
    -- point: before the skipped time
    return (
      select pg_catalog.min(t)
      from pg_catalog.generate_series(v_later - v_skipped, v_later, interval '1 minute') t
      where (t at time zone p_zone) >= p_local);
  end if;
  v_earlier := v_later - (((v_later - interval '3 hours') at time zone p_zone) - (p_local - interval '3 hours'));
  return case when (v_earlier at time zone p_zone) = p_local then least(v_earlier, v_later) else v_later end;
end
$$;

-- Returns the hour that contains a moment, by the clocks of a zone. An hour has sixty minutes, unless the clocks move
-- within it, as those of Lord Howe Island do by half an hour. Such a move ends one hour and begins the next.
create function {schema}.hour_at(
  p_at timestamptz, p_zone text, out starts_at timestamptz, out ends_at timestamptz
)
  language plpgsql stable
  set search_path = ''
as $$
declare
  -- The offset of the zone from UTC.
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
    -- point: before the end of the hour
    select pg_catalog.min(t) into ends_at
    from pg_catalog.generate_series(pg_catalog.date_trunc('minute', p_at), ends_at, interval '1 minute') t
    where t > p_at and (t at time zone p_zone) - (t at time zone 'UTC') <> v_offset;
  end if;
end
$$;

-- Returns the name (`slot`) and the bounds of the period that contains a moment. A day, week or month is named by its
-- date and not by its start, so that another time zone does not give the same day twice. All results are null if the
-- list of slots does not cover the moment.
create function {schema}.period_at(
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
    -- Rounds down, also before the first period.
    v_at := v_at - ((v_at % v_every) + v_every) % v_every + v_from;
    starts_at := {schema}.from_micros(v_at);
    ends_at := {schema}.from_micros(v_at + v_every);
  elsif v_unit = 'hour' then
    -- An hour is named by its start, because an hour that the clocks show twice is two periods. The minutes are those of
    -- the zone, which may be half an hour off.
    select h.starts_at, h.ends_at into starts_at, ends_at from {schema}.hour_at(p_at, v_zone) h;
  elsif v_unit is not null then
    v_local := pg_catalog.date_trunc(v_unit, p_at at time zone v_zone);
    ends_at := {schema}.first_instant(v_local + v_step, v_zone);
    -- When clocks go back over midnight, they show the day before again, although the new day has begun.
    if ends_at <= p_at then
      v_local := v_local + v_step;
      ends_at := {schema}.first_instant(v_local + v_step, v_zone);
    end if;
    starts_at := {schema}.first_instant(v_local, v_zone);
    slot := v_unit || ':' || pg_catalog.to_char(
      v_local, case v_unit when 'day' then 'YYYY-MM-DD' when 'week' then 'IYYY-"W"IW' when 'month' then 'YYYY-MM' else 'YYYY' end);
  else
    v_at := {schema}.micros(p_at);
    -- point: before the slots
    select {schema}.from_micros(pg_catalog.max(s.us::text::bigint) filter (where s.us::text::bigint <= v_at)),
      {schema}.from_micros(pg_catalog.min(s.us::text::bigint) filter (where s.us::text::bigint > v_at))
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
