import { statement } from '../../postgres/statement.js'

/** An expired row counts as absent. Each statement reads the clock once, so that all its rows are judged at one moment. */
const isLive = '(expires_at is null or expires_at > (select {schema}.clock()))' // guard: kv.read-expired

const entry = `key::text as "key", value::text as "value", version::text as "version",
  (extract(epoch from expires_at) * 1000000)::bigint::text as "expires"`

/** The columns that the functions return in addition to their outcome. */
const answer = 'outcome::text as "outcome", stored::text as "value", fence::text as "version"'
const expires = '(extract(epoch from until) * 1000000)::bigint::text as "expires"'

export const setIfAbsent = statement(
  `select ${answer}, ${expires} from {schema}.kv_set_if_absent(
    $1::text, $2::text::jsonb, $3::text::bigint, $4::text::integer)`,
)

export const set = statement(
  'select {schema}.kv_set($1::text, $2::text::jsonb, $3::text::bigint, $4::text::integer)::text as "version"',
)

export const compareAndSet = statement(
  `select ${answer}, ${expires} from {schema}.kv_compare_and_set(
    $1::text, $2::text::bigint, $3::text::jsonb, $4::text::boolean, $5::text::bigint, $6::text::integer)`,
)

export const remove = statement(
  `select ${answer}, ${expires} from {schema}.kv_delete($1::text, $2::text::bigint, $3::text::integer)`,
)

export const patch = statement(
  `select ${answer} from {schema}.kv_patch(
    $1::text, $2::text::jsonb, $3::text::jsonb, $4::text::boolean, $5::text::bigint, $6::text::integer,
    $7::text::integer)`,
)

export const get = statement(`select ${entry} from {schema}.kv where key = $1::text and ${isLive}`, {
  readOnly: true,
})

export const getMany = statement(
  `select ${entry} from {schema}.kv where key = any ($1::text::text[]) and ${isLive}`,
  { readOnly: true },
)

/** Two lower bounds: the prefix, and the last key of the previous page. The primary key's index serves both. */
const from = `select ${entry} from {schema}.kv where key >= $1::text and key > $2::text and ${isLive}`
const page = 'order by kv.key limit $3::text::bigint'

/** Two statements instead of one with an `or`, which would keep the planner from using the upper bound. */
export const scanToEnd = statement(`${from} ${page}`, { readOnly: true })
export const scanRange = statement(`${from} and key < $4::text ${page}`, { readOnly: true })

/** See maintenance. */
export const forgetExpiredKeys = statement(
  'select {schema}.kv_delete_expired($1::text::integer)::text as "count"',
)
