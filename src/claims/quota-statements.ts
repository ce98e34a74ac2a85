import { statement } from '../postgres/statement.js'

const takeValues = `$1::text::text, $2::text::text, $3::text::bigint, $4::text::json, $5::text::bigint[], $6::text::text[],
    $7::text::bigint, $8::text::bigint, $9::text::integer`

/** See sql/0007_quota.sql and the two after it for what each locks and why no two callers can have the same unit. */
export const takeQuota = statement(`select {schema}.quota_take(${takeValues})::text as told`)

/** Without ids, alone: the short way first. */
export const takeQuotaPlain = statement(`
  select coalesce(
    {schema}.quota_take_plain($1::text::text, $2::text::text, $3::text::bigint, $4::text::json, $5::text::bigint[], $9::text::integer),
    {schema}.quota_take(${takeValues})::text
  ) as told`)

/** Several subjects, alone. */
export const takeQuotas = statement(
  'select {schema}.quota_take_many($1::text::text, $2::text::json, $3::text::bigint)::text as told',
)

export const takeQuotaJoined = statement(`select {schema}.quota_take_joined(${takeValues})::text as told`)

const resolveValues = `$1::text::text, $2::text::text, $3::text::text, $4::text::bigint, $5::text::text, $6::text::bigint,
    $7::text::json, $8::text::integer`

export const resolveQuota = statement(`select {schema}.quota_resolve(${resolveValues})::text as told`)

export const resolveQuotaJoined = statement(
  `select {schema}.quota_resolve_joined(${resolveValues})::text as told`,
)

export const peekQuota = statement(
  'select {schema}.quota_peek($1::text::text, $2::text::text, $3::text::json)::text as told',
  { readOnly: true },
)

/** One statement, so that counters and entries are of one moment. */
export const verifyQuota = statement(
  `select q.subject::text as subject, q.used::text as used, q.over::text as over, q.held::text as held,
     (q.used operator(pg_catalog.+) q.over operator(pg_catalog.-) q.unlisted)::text as listed, coalesce(e.taken, 0)::text as entries_taken, coalesce(e.held, 0)::text as entries_held
   from {schema}.quota q
   left join (
     select x.subject, x.window_id,
       pg_catalog.sum(x.amount) filter (where x.state operator(pg_catalog.=) any ('{taken,refunded}'::{schema}.quota_state[])) as taken,
       pg_catalog.sum(x.asked) filter (where x.state operator(pg_catalog.=) 'held'::{schema}.quota_state) as held
     from {schema}.quota_entry x
     where x.name operator(pg_catalog.=) $1::text::text
     group by x.subject, x.window_id
   ) e on e.subject operator(pg_catalog.=) q.subject and e.window_id operator(pg_catalog.=) q.window_id
   where q.name operator(pg_catalog.=) $1::text::text
     and ($2::text::text is null or q.subject operator(pg_catalog.=) $2::text::text)
     and ($3::text::text is null or q.subject collate "C" operator(pg_catalog.>) $3::text::text collate "C")
     and ((q.used operator(pg_catalog.+) q.over operator(pg_catalog.-) q.unlisted) operator(pg_catalog.<>) coalesce(e.taken, 0)
       or q.held operator(pg_catalog.<>) coalesce(e.held, 0))
   order by q.subject collate "C"
   limit $4::text::integer`,
  { readOnly: true },
)

export const forgetQuotas = statement(
  'select f.count::text as count, f.is_busy::text as busy from {schema}.quota_forget($1::text::integer) f',
)
