-- compatible_from: 1
--
-- Which period of a calendar, of an interval or of a list of slots a moment lies in. A rule is JSON: {"unit": "day", "zone": "Europe/Berlin"},
-- {"everyUs": 60000000, "fromUs": 0}, {"slotsUs": [1, 2, 3]}. Null is one period without an end.

-- The first moment at which the clocks of a zone show this time. Where they show it twice, because they were put back, PostgreSQL means the
-- second; a day that has such an hour at its start would begin an hour after its first moment. One that they skip is the moment of the skip.
create function {schema}.first_moment(p_local timestamp, p_zone text) returns timestamptz
  language sql stable
  set search_path = ''
as $$
  select case when (m.earlier at time zone p_zone) = p_local then least(m.earlier, m.later) else m.later end
  from (
    select
      c.later,
      c.later - (((c.later - interval '3 hours') at time zone p_zone) - (p_local - interval '3 hours')) as earlier
    from (select p_local at time zone p_zone as later) c
  ) m
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
    starts_at := pg_catalog.date_trunc('hour', p_at, v_zone);
    ends_at := starts_at + interval '1 hour';
  elsif v_unit is not null then
    v_local := pg_catalog.date_trunc(v_unit, p_at at time zone v_zone);
    starts_at := {schema}.first_moment(v_local, v_zone);
    ends_at := {schema}.first_moment(v_local + ('1 ' || v_unit)::interval, v_zone);
    slot := v_unit || ':' || pg_catalog.to_char(
      v_local, case v_unit when 'day' then 'YYYY-MM-DD' when 'week' then 'IYYY-"W"IW' when 'month' then 'YYYY-MM' else 'YYYY' end);
  else
    v_at := {schema}.micros(p_at);
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
