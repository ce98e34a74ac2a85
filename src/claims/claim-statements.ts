import { statement } from '../postgres/statement.js'

/** How long the statement has run, in milliseconds: nearly all of it was a wait for locks. */
export const waitedMs = `(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() operator(pg_catalog.-)
  pg_catalog.statement_timestamp()) operator(pg_catalog.*) 1000)::integer::text`

/** See sql/0006_claim.sql to sql/0009_claim_recover.sql for what each locks and why two callers cannot both win. */
export const beginClaim = statement(`
  select {schema}.claim_begin(
    $1::text::text, $2::text::text, $3::text::text, $4::text::text, $5::text::text, $6::text::bigint, $7::text::bigint,
    $8::text::integer, $9::text::boolean, $10::text::integer, $11::text::text, $12::text::json, $13::text::json
  )::text as result, ${waitedMs} as waited`)

export const beginJoinedClaim = statement(`
  select {schema}.claim_begin_joined(
    $1::text::text, $2::text::text, $3::text::text, $4::text::text, $5::text::bigint, $6::text::integer
  )::text as result, ${waitedMs} as waited`)

export const beginAnnouncedClaim = statement(`
  select {schema}.claim_begin_announced(
    $1::text::text, $2::text::text, $3::text::text, $4::text::text, $5::text::bigint, $6::text::integer
  )::text as result, ${waitedMs} as waited`)

export const finishClaim = statement(`
  select {schema}.claim_store_outcome(
    $1::text::text, $2::text::text, $3::text::bigint, $4::text::integer, $5::text::{schema}.claim_status, $6::text::json,
    $7::text::bigint, $8::text::boolean
  )::text as result`)

export const renewClaim = statement(`
  select {schema}.claim_renew($1::text::text, $2::text::text, $3::text::bigint, $4::text::integer, $5::text::bigint)::text
    as state`)

export const stepClaim = statement(`
  select {schema}.claim_record_step(
    $1::text::text, $2::text::text, $3::text::bigint, $4::text::integer, $5::text::text, $6::text::text
  )::text as state`)

export const endClaim = statement(`
  select {schema}.claim_release(
    $1::text::text, $2::text::text, $3::text::bigint, $4::text::integer, $5::text::bigint, $6::text::bigint, $7::text::json,
    $8::text::boolean
  )::text as state`)

export const takeOverClaims = statement(`
  select f.result::text as result, f.input::text as input
  from {schema}.claim_take_over(
    $1::text::text, $2::text::text, $3::text::bigint, $4::text::bigint, $5::text::integer, $6::text::json,
    $7::text::integer
  ) f`)

export const forgetExpiredClaims = statement(
  'select {schema}.claim_delete_expired($1::text::integer)::text as count',
)

export const decideClaim = statement(`
  select {schema}.claim_override(
    $1::text::text, $2::text::text, $3::text::text, $4::text::json, $5::text::bigint, $6::text::boolean
  )::text as result`)
