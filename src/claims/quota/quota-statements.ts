import { statement } from '../../postgres/statement.js'

const takeValues = `$1::text::text, $2::text::text, $3::text::bigint, $4::text::json, $5::text::bigint[], $6::text::text[],
    $7::text::bigint, $8::text::bigint, $9::text::integer`

/** See sql/0010_quota.sql and the two after it for what each locks and why no two callers can have the same unit. */
export const takeQuota = statement(`select {schema}.quota_take(${takeValues})::text as result`)

/** Without ids, outside of a transaction: tries the fast path first. */
export const takeQuotaPlain = statement(`
  select coalesce(
    {schema}.quota_take_fast($1::text::text, $2::text::text, $3::text::bigint, $4::text::json, $5::text::bigint[], $9::text::integer),
    {schema}.quota_take(${takeValues})::text
  ) as result`)

/** Several subjects, outside of a transaction. */
export const takeQuotas = statement(
  'select {schema}.quota_take_many($1::text::text, $2::text::json, $3::text::bigint)::text as result',
)

export const takeQuotaJoined = statement(`select {schema}.quota_take_joined(${takeValues})::text as result`)

const resolveValues = `$1::text::text, $2::text::text, $3::text::text, $4::text::bigint, $5::text::text, $6::text::bigint,
    $7::text::json, $8::text::integer`

export const resolveQuota = statement(`select {schema}.quota_resolve(${resolveValues})::text as result`)

export const resolveQuotaJoined = statement(
  `select {schema}.quota_resolve_joined(${resolveValues})::text as result`,
)

export const peekQuota = statement(
  'select {schema}.quota_peek($1::text::text, $2::text::text, $3::text::json)::text as result',
  { readOnly: true },
)

/** A single statement, so that counters and entries come from one snapshot. */
export const verifyQuota = statement(
  `select q.subject::text as subject, q.used::text as used, q.overdrawn::text as over, q.held::text as held,
     (q.used operator(pg_catalog.+) q.overdrawn operator(pg_catalog.-) q.unlisted)::text as listed, coalesce(e.taken, 0)::text as entries_taken, coalesce(e.held, 0)::text as entries_held
   from {schema}.quota q
   left join (
     select x.subject, x.window_id,
       pg_catalog.sum(x.amount) filter (where x.state operator(pg_catalog.=) any ('{taken,refunded}'::{schema}.quota_state[])) as taken,
       pg_catalog.sum(x.requested) filter (where x.state operator(pg_catalog.=) 'held'::{schema}.quota_state) as held
     from {schema}.quota_entry x
     where x.name operator(pg_catalog.=) $1::text::text
     group by x.subject, x.window_id
   ) e on e.subject operator(pg_catalog.=) q.subject and e.window_id operator(pg_catalog.=) q.window_id
   where q.name operator(pg_catalog.=) $1::text::text
     and ($2::text::text is null or q.subject operator(pg_catalog.=) $2::text::text)
     and ($3::text::text is null or q.subject collate "C" operator(pg_catalog.>) $3::text::text collate "C")
     and ((q.used operator(pg_catalog.+) q.overdrawn operator(pg_catalog.-) q.unlisted) operator(pg_catalog.<>) coalesce(e.taken, 0)
       or q.held operator(pg_catalog.<>) coalesce(e.held, 0))
   order by q.subject collate "C"
   limit $4::text::integer`,
  { readOnly: true },
)

export const forgetQuotas = statement(
  'select f.count::text as count, f.is_busy::text as busy from {schema}.quota_delete_expired($1::text::integer) f',
)
