-- compatible_from: 1
--
-- Claims. One row is one idempotent operation: its holder, fence and lease, and its outcome.
--
-- A joined claim, in the caller's own transaction, is invisible before it has its outcome. If such a claim is left
-- `pending`, nobody works on it any more, so its lease is '-infinity', as after a release. A leased claim, which
-- commits first, is held until `lease_until`.

-- `pending`: begun; `active`: has its outcome; `failed`: ended for good without one.
create type {schema}.claim_status as enum ('pending', 'active', 'failed');

create table {schema}.claim (
  scope text collate "C" not null,
  key text collate "C" not null,
  -- The id that the first caller made. Takeovers keep it, so that other systems can recognize a repetition.
  id text not null,
  status {schema}.claim_status not null default 'pending',
  fence bigint not null,
  attempt integer not null default 1,
  -- The number of attempts without a recorded outcome: their lease expired.
  lost integer not null default 0,
  lease_until timestamptz,
  -- The unique name of one call; `tx:` and a number for a transaction; `nobody` after a release.
  holder text not null,
  fingerprint text,
  -- `json` and not `jsonb`, so that a replay has the bytes of the first answer. Null with `active`: the outcome was
  -- undefined.
  outcome json,
  input json,
  steps jsonb not null default '{}',
  -- The error of the last attempt that ended with one.
  last_error json,
  -- The name of an operation that any process may finish. Null once it is finished or released.
  open_operation text,
  created_at timestamptz not null,
  completed_at timestamptz,
  -- Null: the claim is kept forever, or a holder may be working on it.
  expires_at timestamptz,
  primary key (scope, key), -- guard: once.claim-unique
  -- One short check. PostgreSQL parses the text of each check for every statement: eight of them tripled the time of an
  -- insert (51 to 148 µs). The cost of this one cannot be measured, and the type of `status` is free.
  constraint claim_is_pending_or_over check (
    (status = 'pending') = (lease_until is not null) and num_nonnulls(lease_until, completed_at) = 1
  )
);

-- For maintenance. Neither index names `status`: otherwise storing an outcome would not be a HOT update.
create index claim_expires_at_idx on {schema}.claim (expires_at) where expires_at is not null;

create index claim_open_operation_idx on {schema}.claim (open_operation) where open_operation is not null;

-- Returns a claim as one JSON value. As a row of twelve columns, a replay took twice the time, half of it in the
-- client. The caller that runs the claim gets the steps, a replay gets the outcome, and a caller that waits gets
-- neither.
create function {schema}.claim_result(state text, c {schema}.claim, left_ms bigint) returns json
  language sql stable
as $$
  select pg_catalog.json_build_object(
    'state', state, 'key', c.key, 'id', c.id, 'status', c.status, 'fence', c.fence, 'attempt', c.attempt, 'lost', c.lost,
    'holder', c.holder, 'leftMs', left_ms, 'leaseUntil', case when left_ms is not null then {schema}.micros(c.lease_until) end,
    'completedAt', {schema}.micros(c.completed_at),
    'hasOutcome', c.outcome is not null, 'outcome', c.outcome,
    'steps', case when state in ('claimed', 'taken over') then c.steps end)
$$;
