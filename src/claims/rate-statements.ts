import { statement } from '../postgres/statement.js'

/** See sql/0010_rate.sql for what each locks and why two callers cannot both get the last. */
export const takeRate = statement(`
  select {schema}.rate_take(
    $1::text::text, $2::text::text, $3::text::text, $4::text::text, $5::text::bigint, $6::text::bigint, $7::text::bigint,
    $8::text::bigint[], $9::text::integer
  )::text as told`)

/** In a caller's transaction. */
export const takeRateJoined = statement(`
  select {schema}.rate_take_joined(
    $1::text::text, $2::text::text, $3::text::text, $4::text::text, $5::text::bigint, $6::text::bigint, $7::text::bigint,
    $8::text::bigint[], $9::text::integer
  )::text as told`)

/** Several subjects, alone. */
export const takeRates = statement(`
  select {schema}.rate_take_many(
    $1::text::text, $2::text::text[], $3::text::text, $4::text::text, $5::text::bigint, $6::text::bigint, $7::text::bigint,
    $8::text::text[]
  )::text as told`)

export const peekRate = statement(
  `select {schema}.rate_peek(
    $1::text::text, $2::text::text, $3::text::text, $4::text::text, $5::text::bigint, $6::text::bigint, $7::text::bigint
  )::text as told`,
  { readOnly: true },
)

/** See maintenance. */
export const forgetExpiredRates = statement(
  'select {schema}.rate_forget_expired($1::text::integer)::text as count',
)
