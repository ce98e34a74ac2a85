-- compatible_from: 1
--
-- Values by key, each with a version and perhaps an expiry. An expired row is absent for every call, whether
-- maintenance has deleted it or not. A call that is a transaction of its own bounds its waits for a lock (`p_wait_ms`).
-- In a caller's transaction the caller bounds them, because a lock timeout would abort that transaction. Byte order
-- (collate "C") makes a prefix a range of the primary key, whatever the locale of the database.

create table {schema}.kv (
  key text collate "C" primary key, -- guard: kv.key-unique
  value jsonb not null,
  version bigint not null,
  expires_at timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  -- One short check. PostgreSQL parses the text of each check for every statement: three of them tripled the time of an
  -- insert (17 to 55 µs).
  constraint kv_key_length check (pg_catalog.octet_length(key) between 1 and 512)
);

-- For maintenance only.
create index kv_expires_at_idx on {schema}.kv (expires_at) where expires_at is not null;

-- Merges `p_fields` into `p_target` field by field where both are objects, at any depth. Any other value replaces the
-- old one. The function has no `set search_path`, which would cost time at every depth: its only caller sets it.
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

-- Removes the fields at these paths. A path that does not end at a field of an object removes nothing: an element of an
-- array has no name of its own, and another patch may have moved it.
create function {schema}.kv_remove_paths(p_value jsonb, p_paths jsonb) returns jsonb
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

-- Locks the row of a key, expired or not, and returns it. Returns null if there is no row.
--
-- Locks: that row and nothing else. A transaction may delete a key and insert it again. A caller that waited for the
-- old row then gets nothing, because the new row was not in its snapshot. The next statement sees the new row, so the
-- function tries again. Explored in kv.explore.test.ts: "deleted and made again in one transaction".
create function {schema}.kv_lock(p_key text) returns {schema}.kv
  language plpgsql volatile set search_path = ''
  as $$
declare
  v_row {schema}.kv;
begin
  for v_try in 1 .. 10 loop
    select * into v_row from {schema}.kv where key = p_key for no key update; -- guard: kv.row-lock
    if found then
      return v_row;
    end if;
    -- point: no row found
    perform from {schema}.kv where key = p_key;
    if not found then
      return null;
    end if;
    -- point: row found again
  end loop;
  raise exception 'a key was deleted and made again ten times meanwhile' using errcode = 'DB503';
end $$;

-- Inserts a key unless it has a row. Returns the version of the new row, or null.
--
-- Locks: the new row. Two callers cannot both insert: at the primary key, the second waits until the transaction of the
-- first ends. If that transaction rolls back, the second inserts, and the life of its entry begins after the wait (ten
-- milliseconds or more count as a wait). There is no old row, so the version starts from the clock alone. Explored in
-- kv.explore.test.ts: "a key that is not there".
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
  -- The snapshot of this transaction may still show a row that another transaction has deleted since. This transaction
  -- would see the key twice, and its caller may have decided by the old row.
  if pg_catalog.current_setting('transaction_isolation') in ('repeatable read', 'serializable')
    and (select pg_catalog.count(*) from {schema}.kv where key = p_key) > 1 then
    raise exception 'could not serialize access due to a key that was deleted meanwhile'
      using errcode = 'serialization_failure';
  end if;
  v_later := {schema}.clock();
  if v_later >= v_now + interval '10 milliseconds' then
    -- point: insert waited
    update {schema}.kv
    set version = {schema}.next_fence(v_version, v_later), created_at = v_later, updated_at = v_later,
      expires_at = v_later + p_ttl_ms * interval '1 millisecond'
    where key = p_key
    returning version into v_version;
  end if;
  return v_version;
end $$;

-- Sets a key that is absent. Otherwise returns the stored value.
--
-- Locks: the new row, or an expired one. A live key is only read. Two callers cannot both win. For a missing key, the
-- primary key admits one insert. For an expired key, the second caller gets the row lock later and finds the key live.
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
    perform {schema}.limit_lock_wait(p_wait_ms);
  end if;
  for v_try in 1 .. 10 loop
    outcome := 'claimed';
    fence := {schema}.kv_insert(p_key, p_value, p_ttl_ms);
    if fence is not null then
      return;
    end if;
    -- point: key exists
    -- The next statement has a new snapshot, which shows the row of the winner.
    select * into v_row from {schema}.kv where key = p_key;
    v_now := {schema}.clock();
    if v_row.expires_at <= v_now then
      -- point: row expired
      v_row := {schema}.kv_lock(p_key); -- guard: kv.set-if-absent-lock
      v_now := {schema}.clock();
      if v_row.expires_at <= v_now then -- guard: kv.set-if-absent-recheck
        -- point: row locked
        update {schema}.kv
        set value = p_value, version = {schema}.next_fence(v_row.version, v_now), -- guard: kv.set-if-absent-version
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
    -- point: row missing
  end loop;
  raise exception 'a key was deleted and made again ten times meanwhile' using errcode = 'DB503';
end $$;

-- Sets a value, whether the key exists or not. The last write wins.
--
-- Locks: the row, new or existing. The version grows under that lock, so two writers never get the same version.
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
    perform {schema}.limit_lock_wait(p_wait_ms);
  end if;
  for v_try in 1 .. 10 loop
    v_version := {schema}.kv_insert(p_key, p_value, p_ttl_ms);
    if v_version is not null then
      return v_version;
    end if;
    -- point: row exists
    v_row := {schema}.kv_lock(p_key);
    if v_row.key is not null then
      v_now := {schema}.clock();
      -- point: row locked
      update {schema}.kv
      set value = p_value, version = {schema}.next_fence(v_row.version, v_now), -- guard: kv.set-version
        expires_at = v_now + p_ttl_ms * interval '1 millisecond', updated_at = v_now,
        created_at = case when v_row.expires_at <= v_now then v_now else v_row.created_at end
      where key = p_key
      returning version into v_version;
      return v_version;
    end if;
    -- point: row missing
  end loop;
  raise exception 'a key was deleted and made again ten times meanwhile' using errcode = 'DB503';
end $$;

-- Sets a value if the key still has the expected version. Otherwise returns the stored value and its version.
--
-- Locks: the row, before the function compares version and expiry. Two callers with the same version cannot both win:
-- the second gets the lock after the first has raised the version. Explored in kv.explore.test.ts: "the same version".
create function {schema}.kv_compare_and_set(
  p_key text, p_version bigint, p_value jsonb, p_keep_expiry boolean, p_ttl_ms bigint, p_wait_ms integer,
  out outcome text, out stored jsonb, out fence bigint, out until timestamptz
)
  language plpgsql volatile set search_path = ''
  as $$
declare
  v_now timestamptz;
  v_row {schema}.kv;
begin
  if p_wait_ms is not null then
    perform {schema}.limit_lock_wait(p_wait_ms);
  end if;
  -- guard: kv.compare-and-set-clock {
  v_row := {schema}.kv_lock(p_key);
  v_now := {schema}.clock();
  -- guard: kv.compare-and-set-clock }
  if v_row.key is null or v_row.expires_at <= v_now then
    outcome := 'absent';
  elsif v_row.version <> p_version then -- guard: kv.compare-and-set-version
    outcome := 'refused';
    stored := v_row.value;
    fence := v_row.version;
    until := v_row.expires_at;
  else
    outcome := 'set';
    -- point: row locked
    update {schema}.kv
    set value = p_value, version = {schema}.next_fence(v_row.version, v_now), updated_at = v_now,
      expires_at = case when p_keep_expiry then v_row.expires_at else v_now + p_ttl_ms * interval '1 millisecond' end
    where key = p_key
    returning version into fence;
  end if;
end $$;

-- Deletes a key; with a version, only that version. If the version differs, returns the stored value.
--
-- Locks: the row, before the function compares version and expiry, so that it deletes what it compared. Explored in
-- kv.explore.test.ts: "delete by version".
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
    perform {schema}.limit_lock_wait(p_wait_ms);
  end if;
  v_row := {schema}.kv_lock(p_key);
  v_now := {schema}.clock();
  if v_row.key is null or v_row.expires_at <= v_now then
    outcome := 'absent';
  elsif v_row.version <> p_version then -- guard: kv.delete-version
    outcome := 'refused';
    stored := v_row.value;
    fence := v_row.version;
    until := v_row.expires_at;
  else
    outcome := 'deleted';
    -- point: row locked
    delete from {schema}.kv where key = p_key;
  end if;
end $$;

-- Changes fields of an object and leaves the others as they are.
--
-- Locks: the row, before the function reads the value. Two patches cannot overwrite each other's fields: the second
-- starts from the value that the first has written. Removal comes first, so a field that is removed and set is replaced
-- as a whole. Explored in kv.explore.test.ts: "patches of three fields of one object".
create function {schema}.kv_patch(
  p_key text, p_fields jsonb, p_remove jsonb, p_keep_expiry boolean, p_ttl_ms bigint, p_max_bytes integer,
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
    perform {schema}.limit_lock_wait(p_wait_ms);
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
  stored := {schema}.kv_merge({schema}.kv_remove_paths(v_row.value, p_remove), p_fields);
  if pg_catalog.octet_length(stored::text) > p_max_bytes then -- guard: kv.patch-size
    outcome := 'too large';
    return;
  end if;
  outcome := 'patched';
  -- point: row locked
  update {schema}.kv
  set value = stored, version = {schema}.next_fence(v_row.version, v_now), updated_at = v_now,
    expires_at = case when p_keep_expiry then v_row.expires_at else v_now + p_ttl_ms * interval '1 millisecond' end
  where key = p_key
  returning version into fence;
end $$;

-- Deletes at most `p_batch` expired rows, for maintenance, and returns their number. No other function depends on this
-- deletion.
--
-- Locks: those rows, skipping locked ones, so the function never waits. A row that was set again meanwhile is not
-- deleted: PostgreSQL rereads the row when it locks it, and finds that it has not expired. The clock may be read before
-- the lock here, because a row that had expired then has expired now. The array is needed because a plan may run a
-- joined subquery with a limit more than once. Explored in kv.explore.test.ts: "maintenance".
create function {schema}.kv_delete_expired(p_batch integer) returns bigint
  language plpgsql volatile set search_path = ''
  as $$
declare
  v_now timestamptz := {schema}.clock();
  v_count bigint;
begin
  delete from {schema}.kv where key = any (array(select key from {schema}.kv where expires_at <= v_now
    order by expires_at limit p_batch for update skip locked)); -- guard: kv.maintenance-lock, kv.maintenance-skip-locked, kv.maintenance-batch
  get diagnostics v_count = row_count;
  return v_count;
end $$;
