-- compatible_from: 1
--
-- A new table and new functions; what an earlier release calls stays as it is.
--
-- Values by key, each with a version and perhaps an expiry. An expired row is absent for every call, whether it was removed
-- or not. A call that is a transaction of its own bounds its waits for a lock (`p_wait_ms`); in a caller's transaction that is the
-- caller's to do, for an error would end it. Byte order (collate "C") makes a prefix a range of the primary key, whatever the locale of the database.
create table {schema}.kv (
  key text collate "C" primary key,
  value jsonb not null,
  version bigint not null,
  expires_at timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  -- One, and short: PostgreSQL reads the text of each check anew for every statement. Three of them tripled the time of an
  -- insert (17 to 55 µs).
  constraint kv_key_length check (pg_catalog.octet_length(key) between 1 and 512)
);

-- What maintenance reads, and nothing else.
create index kv_expires_at on {schema}.kv (expires_at) where expires_at is not null;

-- Merges field by field where both are objects, at any depth; everything else replaces. No `set search_path`, which would be
-- paid for at every depth: its one caller has it.
create function {schema}.kv_merge(p_target jsonb, p_fields jsonb) returns jsonb
  language plpgsql immutable
  as $$
begin
  if pg_catalog.jsonb_typeof(p_target) is distinct from 'object' or pg_catalog.jsonb_typeof(p_fields) <> 'object' then
    return p_fields;
  end if;
  return p_target || coalesce(
    (select pg_catalog.jsonb_object_agg(f.key, {schema}.kv_merge(p_target -> f.key, f.value))
     from pg_catalog.jsonb_each(p_fields) f), '{}');
end $$;

-- Takes away the fields that these paths lead to. A path whose end is no field of an object takes nothing away: an element
-- of an array has no name of its own, and another patch may have moved it.
create function {schema}.kv_without(p_value jsonb, p_paths jsonb) returns jsonb
  language plpgsql immutable
  as $$
declare
  v_path text[];
begin
  for v_n in 0 .. pg_catalog.jsonb_array_length(p_paths) - 1 loop
    v_path := array(select pg_catalog.jsonb_array_elements_text(p_paths -> v_n));
    if pg_catalog.jsonb_typeof(p_value #> v_path[:pg_catalog.cardinality(v_path) - 1]) = 'object' then
      p_value := p_value #- v_path;
    end if;
  end loop;
  return p_value;
end $$;

-- Locks the row of a key, expired or not; null if there is none.
--
-- Locks: that row, nothing else. Whoever deletes a key and makes it again in one transaction leaves those who waited for it
-- with nothing, since the row they waited for is gone and the new one was not there when they began. The next statement
-- sees it, hence the second look. Explored in kv.explore.test.ts: "deleted and made again in one transaction".
create function {schema}.kv_lock(p_key text) returns {schema}.kv
  language plpgsql volatile set search_path = ''
  as $$
declare
  v_row {schema}.kv;
begin
  for v_try in 1 .. 10 loop
    select * into v_row from {schema}.kv where key = p_key for no key update;
    if found then
      return v_row;
    end if;
    -- point: nothing to lock
    perform from {schema}.kv where key = p_key;
    if not found then
      return null;
    end if;
    -- point: there again
  end loop;
  raise exception 'a key was deleted and made again ten times meanwhile' using errcode = 'DB503';
end $$;

-- Inserts a key unless there is a row; returns its version, or null.
--
-- Locks: the new row. Two callers cannot both insert, by the primary key: the second waits for the end of the first. It may
-- wait long and win, if the first rolls back: then its life begins after the wait. Ten milliseconds are no wait.
-- There is no row whose version could be raised, and none to lock before the clock is read: it starts from the clock alone.
-- Explored in kv.explore.test.ts: "a key that is not there".
create function {schema}.kv_insert(p_key text, p_value jsonb, p_ttl_ms bigint) returns bigint
  language plpgsql volatile set search_path = ''
  as $$
declare
  v_now timestamptz := {schema}.clock();
  v_later timestamptz;
  v_version bigint;
begin
  insert into {schema}.kv (key, value, version, expires_at, created_at, updated_at)
  values (p_key, p_value, {schema}.next_fence(0, v_now), v_now + p_ttl_ms * interval '1 millisecond', v_now, v_now)
  on conflict (key) do nothing
  returning version into v_version;
  if not found then
    return null;
  end if;
  -- The transaction's snapshot may still show a row that another has deleted since: then it would see the key twice, and its
  -- caller has perhaps decided by the old one.
  if pg_catalog.current_setting('transaction_isolation') in ('repeatable read', 'serializable')
    and (select pg_catalog.count(*) from {schema}.kv where key = p_key) > 1 then
    raise exception 'could not serialize access due to a key that was deleted meanwhile'
      using errcode = 'serialization_failure';
  end if;
  v_later := {schema}.clock();
  if v_later >= v_now + interval '10 milliseconds' then
    -- point: waited
    update {schema}.kv
    set version = {schema}.next_fence(v_version, v_later), created_at = v_later, updated_at = v_later,
      expires_at = v_later + p_ttl_ms * interval '1 millisecond'
    where key = p_key
    returning version into v_version;
  end if;
  return v_version;
end $$;

-- Claims a key that is absent; else tells what is there.
--
-- Locks: its new row, or an expired one; a key that is live is only read. Two callers cannot both win: of a missing key the
-- primary key lets one through; of an expired one the row lock does, and whoever gets it second finds it live.
-- Explored in kv.explore.test.ts: "a key that is not there", "a key that has expired".
create function {schema}.kv_set_if_absent(
  p_key text, p_value jsonb, p_ttl_ms bigint, p_wait_ms integer,
  out outcome text, out stored jsonb, out fence bigint, out until timestamptz
)
  language plpgsql volatile set search_path = ''
  as $$
declare
  v_now timestamptz;
  v_row {schema}.kv;
begin
  if p_wait_ms is not null then
    perform {schema}.bound(p_wait_ms);
  end if;
  for v_try in 1 .. 10 loop
    outcome := 'claimed';
    fence := {schema}.kv_insert(p_key, p_value, p_ttl_ms);
    if fence is not null then
      return;
    end if;
    -- point: taken
    -- A snapshot of its own, which shows the winner.
    select * into v_row from {schema}.kv where key = p_key;
    v_now := {schema}.clock();
    if v_row.expires_at <= v_now then
      -- point: expired
      v_row := {schema}.kv_lock(p_key);
      v_now := {schema}.clock();
      if v_row.expires_at <= v_now then
        -- point: locked
        update {schema}.kv
        set value = p_value, version = {schema}.next_fence(v_row.version, v_now),
          expires_at = v_now + p_ttl_ms * interval '1 millisecond', created_at = v_now, updated_at = v_now
        where key = p_key
        returning version into fence;
        return;
      end if;
    end if;
    if v_row.key is not null then
      outcome := 'taken';
      stored := v_row.value;
      fence := v_row.version;
      until := v_row.expires_at;
      return;
    end if;
    -- point: gone
  end loop;
  raise exception 'a key was deleted and made again ten times meanwhile' using errcode = 'DB503';
end $$;

-- Writes a value whatever is there; the last write wins.
--
-- Locks: the row, new or there. The version grows under that lock, so two writers never get the same.
-- Explored in kv.explore.test.ts: "takes … against …".
create function {schema}.kv_set(p_key text, p_value jsonb, p_ttl_ms bigint, p_wait_ms integer) returns bigint
  language plpgsql volatile set search_path = ''
  as $$
declare
  v_now timestamptz;
  v_row {schema}.kv;
  v_version bigint;
begin
  if p_wait_ms is not null then
    perform {schema}.bound(p_wait_ms);
  end if;
  for v_try in 1 .. 10 loop
    v_version := {schema}.kv_insert(p_key, p_value, p_ttl_ms);
    if v_version is not null then
      return v_version;
    end if;
    -- point: there
    v_row := {schema}.kv_lock(p_key);
    if v_row.key is not null then
      v_now := {schema}.clock();
      -- point: locked
      update {schema}.kv
      set value = p_value, version = {schema}.next_fence(v_row.version, v_now),
        expires_at = v_now + p_ttl_ms * interval '1 millisecond', updated_at = v_now,
        created_at = case when v_row.expires_at <= v_now then v_now else v_row.created_at end
      where key = p_key
      returning version into v_version;
      return v_version;
    end if;
    -- point: gone
  end loop;
  raise exception 'a key was deleted and made again ten times meanwhile' using errcode = 'DB503';
end $$;

-- Writes a value if the version is still the one that the caller saw; else tells what is there.
--
-- Locks: the row, before version and expiry are looked at. Two callers with the same version cannot both win: the second
-- gets the lock when the first has raised the version. Explored in kv.explore.test.ts: "the same version".
create function {schema}.kv_compare_and_set(
  p_key text, p_version bigint, p_value jsonb, p_keeps_expiry boolean, p_ttl_ms bigint, p_wait_ms integer,
  out outcome text, out stored jsonb, out fence bigint, out until timestamptz
)
  language plpgsql volatile set search_path = ''
  as $$
declare
  v_now timestamptz;
  v_row {schema}.kv;
begin
  if p_wait_ms is not null then
    perform {schema}.bound(p_wait_ms);
  end if;
  v_row := {schema}.kv_lock(p_key);
  v_now := {schema}.clock();
  if v_row.key is null or v_row.expires_at <= v_now then
    outcome := 'absent';
  elsif v_row.version <> p_version then
    outcome := 'refused';
    stored := v_row.value;
    fence := v_row.version;
    until := v_row.expires_at;
  else
    outcome := 'set';
    -- point: locked
    update {schema}.kv
    set value = p_value, version = {schema}.next_fence(v_row.version, v_now), updated_at = v_now,
      expires_at = case when p_keeps_expiry then v_row.expires_at else v_now + p_ttl_ms * interval '1 millisecond' end
    where key = p_key
    returning version into fence;
  end if;
end $$;

-- Deletes a key, if a version is given only that; else tells what is there.
--
-- Locks: the row, before version and expiry are looked at, so that what is deleted is what was compared.
-- Explored in kv.explore.test.ts: "delete by version".
create function {schema}.kv_delete(
  p_key text, p_version bigint, p_wait_ms integer,
  out outcome text, out stored jsonb, out fence bigint, out until timestamptz
)
  language plpgsql volatile set search_path = ''
  as $$
declare
  v_now timestamptz;
  v_row {schema}.kv;
begin
  if p_wait_ms is not null then
    perform {schema}.bound(p_wait_ms);
  end if;
  v_row := {schema}.kv_lock(p_key);
  v_now := {schema}.clock();
  if v_row.key is null or v_row.expires_at <= v_now then
    outcome := 'absent';
  elsif v_row.version <> p_version then
    outcome := 'refused';
    stored := v_row.value;
    fence := v_row.version;
    until := v_row.expires_at;
  else
    outcome := 'deleted';
    -- point: locked
    delete from {schema}.kv where key = p_key;
  end if;
end $$;

-- Changes fields of an object, and leaves the others as they are.
--
-- Locks: the row, before its value is read. So the second of two patches starts from what the first has left, and neither
-- can write over the other's fields. What is taken away goes first: whoever removes a field and sets it replaces it whole.
-- Explored in kv.explore.test.ts: "patches of three fields of one object".
create function {schema}.kv_patch(
  p_key text, p_fields jsonb, p_remove jsonb, p_keeps_expiry boolean, p_ttl_ms bigint, p_most_bytes integer,
  p_wait_ms integer,
  out outcome text, out stored jsonb, out fence bigint
)
  language plpgsql volatile set search_path = ''
  as $$
declare
  v_now timestamptz;
  v_row {schema}.kv;
begin
  if p_wait_ms is not null then
    perform {schema}.bound(p_wait_ms);
  end if;
  v_row := {schema}.kv_lock(p_key);
  v_now := {schema}.clock();
  if v_row.key is null or v_row.expires_at <= v_now then
    outcome := 'absent';
    return;
  end if;
  if pg_catalog.jsonb_typeof(v_row.value) <> 'object' then
    outcome := pg_catalog.jsonb_typeof(v_row.value);
    return;
  end if;
  stored := {schema}.kv_merge({schema}.kv_without(v_row.value, p_remove), p_fields);
  if pg_catalog.octet_length(stored::text) > p_most_bytes then
    outcome := 'too large';
    return;
  end if;
  outcome := 'patched';
  -- point: locked
  update {schema}.kv
  set value = stored, version = {schema}.next_fence(v_row.version, v_now), updated_at = v_now,
    expires_at = case when p_keeps_expiry then v_row.expires_at else v_now + p_ttl_ms * interval '1 millisecond' end
  where key = p_key
  returning version into fence;
end $$;

-- Removes at most so many expired rows, for maintenance; returns how many. Nothing depends on it.
--
-- Locks: those rows, skipping what is locked, so it never waits. A row that was claimed anew meanwhile is not removed: the
-- lock looks at its newest state, and that has not expired. The clock may be read before the lock here, since what had
-- expired then has expired now. An array, since a plan may run a joined subquery with a limit more than once.
-- Explored in kv.explore.test.ts: "maintenance".
create function {schema}.kv_forget_expired(p_batch integer) returns bigint
  language plpgsql volatile set search_path = ''
  as $$
declare
  v_now timestamptz := {schema}.clock();
  v_count bigint;
begin
  delete from {schema}.kv where key = any (array(select key from {schema}.kv where expires_at <= v_now
    order by expires_at limit p_batch for update skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end $$;
