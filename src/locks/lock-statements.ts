import { statement } from '../postgres/statement.js'

/** See sql/0011_lock.sql. */
export const forgetLocks = statement('select {schema}.lock_forget($1::text::integer)::text as count')

/**
 * The rest: see sql/0016_lock_handle.sql. `now` is the database's clock after the call: a refusal tells what is left of the lease, and `now` tells
 * when that is.
 */
export const acquireLock = statement(
  `select {schema}.lock_acquire($1::text, $2::text::integer, $3::text, $4::text::bigint, $5::text::integer)::text as told,
    {schema}.micros({schema}.clock())::text as now`,
)

export const giveLockBack = statement(
  'select {schema}.lock_give_back($1::text, $2::text::integer, $3::text, $4::text::bigint, $5::text::integer)::text as told',
)

export const renewLocks = statement('select {schema}.lock_renew_all($1::text::json)::text as states')

export const renewLock = statement(
  'select {schema}.lock_renew_one($1::text, $2::text::integer, $3::text::bigint, $4::text::bigint, $5::text::integer)::text as state',
)

export const guardByLock = statement(
  'select {schema}.lock_guard($1::text, $2::text::integer, $3::text::bigint, $4::text::bigint, $5::text::integer, $6::text::boolean)::text as state',
)

export const forceLock = statement(
  'select {schema}.lock_force($1::text, $2::text::bigint, $3::text::integer)::text as told',
)

const told = `l.name::text as "name", l.permit::text as "permit", l.holder::text as "holder", l.fence::text as "fence",
  {schema}.micros(l.acquired_at)::text as "acquiredAt", {schema}.micros(l.expires_at)::text as "expiresAt"`

/** Only what is held: the clock is read once, and not in each row's condition. */
export const listLocks = statement(
  `select ${told} from (select {schema}.clock() as now offset 0) c, {schema}.lock l
  where l.expires_at operator(pg_catalog.>) c.now and pg_catalog.starts_with(l.name, $1::text)
    and (l.name, l.permit) operator(pg_catalog.>) ($2::text collate "C", $3::text::integer)
  order by l.name, l.permit limit $4::text::integer`,
  { readOnly: true },
)

export const inspectLock = statement(
  `select ${told} from (select {schema}.clock() as now offset 0) c, {schema}.lock l
  where l.expires_at operator(pg_catalog.>) c.now and l.name operator(pg_catalog.=) $1::text order by l.permit`,
  { readOnly: true },
)

/** Which of these locks somebody waits for. */
export const wantedLocks = statement(
  `select distinct l.name::text as "name" from (select {schema}.clock() as now offset 0) c, {schema}.lock l
  where l.name operator(pg_catalog.=) any ($1::text::text[]) and l.wanted_until operator(pg_catalog.>) c.now`,
  { readOnly: true },
)

/** How it stands under this fence, as anybody would see it; one that was taken away while it was guarded still has it. */
export const lookAtLock = statement(
  `select case when l.expires_at operator(pg_catalog.=) '-infinity'::timestamptz then 'stolen'
    when l.expires_at operator(pg_catalog.>) {schema}.clock() then 'held' else 'expired' end as "state" from {schema}.lock l
  where l.name operator(pg_catalog.=) $1::text and l.permit operator(pg_catalog.=) $2::text::integer
    and l.fence operator(pg_catalog.=) $3::text::bigint`,
  { readOnly: true },
)
