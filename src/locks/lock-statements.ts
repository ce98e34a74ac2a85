import { statement } from '../postgres/statement.js'

/** See sql/0015_lock.sql. */
export const forgetLocks = statement('select {schema}.lock_delete_idle($1::text::integer)::text as count')

/** See sql/0016_lock_acquire.sql, and sql/0017_lock_hold.sql for the others: what each locks, and why two callers cannot both win. */
export const acquireLock = statement(
  'select {schema}.lock_acquire($1::text, $2::text::integer, $3::text, $4::text::bigint, $5::text::integer)::text as result',
)

export const releaseLock = statement(
  'select {schema}.lock_release($1::text, $2::text::integer, $3::text, $4::text::bigint, $5::text::integer)::text as result',
)

export const renewLocks = statement('select {schema}.lock_renew_many($1::text::json)::text as states')

export const renewLock = statement(
  'select {schema}.lock_renew_one($1::text, $2::text::integer, $3::text::bigint, $4::text::bigint, $5::text::integer)::text as state',
)

export const guardTransaction = statement(
  'select {schema}.lock_guard($1::text, $2::text::integer, $3::text::bigint, $4::text::bigint, $5::text::integer, $6::text::boolean)::text as state',
)

export const forceReleaseLock = statement(
  'select {schema}.lock_force_release($1::text, $2::text::bigint, $3::text::integer)::text as result',
)

const lockColumns = `l.name::text as "name", l.permit::text as "permit", l.holder::text as "holder", l.fence::text as "fence",
  {schema}.micros(l.acquired_at)::text as "acquiredAt", {schema}.micros(l.expires_at)::text as "expiresAt"`

/** Lists held locks. Reads the clock once, and not in the condition of each row. */
export const listLocks = statement(
  `select ${lockColumns} from (select {schema}.clock() as now offset 0) c, {schema}.lock l
  where l.expires_at operator(pg_catalog.>) c.now and pg_catalog.starts_with(l.name, $1::text)
    and (l.name, l.permit) operator(pg_catalog.>) ($2::text collate "C", $3::text::integer)
  order by l.name, l.permit limit $4::text::integer`,
  { readOnly: true },
)

export const inspectLock = statement(
  `select ${lockColumns} from (select {schema}.clock() as now offset 0) c, {schema}.lock l
  where l.expires_at operator(pg_catalog.>) c.now and l.name operator(pg_catalog.=) $1::text order by l.permit`,
  { readOnly: true },
)

/** The locks of these names that calls wait for. */
export const awaitedLocks = statement(
  `select distinct l.name::text as "name" from (select {schema}.clock() as now offset 0) c, {schema}.lock l
  where l.name operator(pg_catalog.=) any ($1::text::text[]) and l.wanted_until operator(pg_catalog.>) c.now`,
  { readOnly: true },
)

/** The state of a lock under this fence. A lock that was taken away during a guarded transaction keeps its fence. */
export const readLockState = statement(
  `select case when l.expires_at operator(pg_catalog.=) '-infinity'::timestamptz then 'stolen'
    when l.expires_at operator(pg_catalog.>) {schema}.clock() then 'held' else 'expired' end as "state" from {schema}.lock l
  where l.name operator(pg_catalog.=) $1::text and l.permit operator(pg_catalog.=) $2::text::integer
    and l.fence operator(pg_catalog.=) $3::text::bigint`,
  { readOnly: true },
)
