import { statement } from '../../postgres/statement.js'

/** See sql/0014_rate.sql for what each locks and why two callers cannot both get the last. */
export const takeRate = statement(`
  select {schema}.rate_take(
    $1::text::text, $2::text::text, $3::text::text, $4::text::text, $5::text::bigint, $6::text::bigint, $7::text::bigint,
    $8::text::bigint[], $9::text::integer
  )::text as result`)

/** In a caller's transaction. */
export const takeRateJoined = statement(`
  select {schema}.rate_take_joined(
    $1::text::text, $2::text::text, $3::text::text, $4::text::text, $5::text::bigint, $6::text::bigint, $7::text::bigint,
    $8::text::bigint[], $9::text::integer
  )::text as result`)

/** Several subjects, outside of a transaction. */
export const takeRates = statement(`
  select {schema}.rate_take_many(
    $1::text::text, $2::text::text[], $3::text::text, $4::text::text, $5::text::bigint, $6::text::bigint, $7::text::bigint,
    $8::text::text[]
  )::text as result`)

export const peekRate = statement(
  `select {schema}.rate_peek(
    $1::text::text, $2::text::text, $3::text::text, $4::text::text, $5::text::bigint, $6::text::bigint, $7::text::bigint
  )::text as result`,
  { readOnly: true },
)

/** See maintenance. */
export const forgetExpiredRates = statement(
  'select {schema}.rate_delete_expired($1::text::integer)::text as count',
)
