import { statement } from '../postgres/statement.js'

/** See sql/0004_claim.sql, sql/0005_claim_upkeep.sql and sql/0015_announce.sql for what each locks and why two callers cannot both win. */
export const beginClaim = statement(`
  select {schema}.claim_begin(
    $1::text::text, $2::text::text, $3::text::text, $4::text::text, $5::text::text, $6::text::bigint, $7::text::bigint,
    $8::text::integer, $9::text::boolean, $10::text::integer, $11::text::text, $12::text::json, $13::text::json
  )::text as told, (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() operator(pg_catalog.-)
    pg_catalog.statement_timestamp()) operator(pg_catalog.*) 1000)::integer::text as waited`)

export const beginJoinedClaim = statement(`
  select {schema}.claim_begin_joined(
    $1::text::text, $2::text::text, $3::text::text, $4::text::text, $5::text::bigint, $6::text::integer
  )::text as told, (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() operator(pg_catalog.-)
    pg_catalog.statement_timestamp()) operator(pg_catalog.*) 1000)::integer::text as waited`)

export const beginAnnouncedClaim = statement(`
  select {schema}.claim_begin_announced(
    $1::text::text, $2::text::text, $3::text::text, $4::text::text, $5::text::bigint, $6::text::integer
  )::text as told, (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() operator(pg_catalog.-)
    pg_catalog.statement_timestamp()) operator(pg_catalog.*) 1000)::integer::text as waited`)

export const finishClaim = statement(`
  select {schema}.claim_finish(
    $1::text::text, $2::text::text, $3::text::bigint, $4::text::integer, $5::text::{schema}.claim_status, $6::text::json,
    $7::text::bigint, $8::text::boolean
  )::text as told`)

export const renewClaim = statement(`
  select {schema}.claim_renew($1::text::text, $2::text::text, $3::text::bigint, $4::text::integer, $5::text::bigint)::text
    as state`)

export const stepClaim = statement(`
  select {schema}.claim_step(
    $1::text::text, $2::text::text, $3::text::bigint, $4::text::integer, $5::text::text, $6::text::text
  )::text as state`)

export const endClaim = statement(`
  select {schema}.claim_end(
    $1::text::text, $2::text::text, $3::text::bigint, $4::text::integer, $5::text::bigint, $6::text::bigint, $7::text::json,
    $8::text::boolean
  )::text as state`)

export const takeOverClaims = statement(`
  select f.told::text as told, f.input::text as input
  from {schema}.claim_take_over(
    $1::text::text, $2::text::text, $3::text::bigint, $4::text::bigint, $5::text::integer, $6::text::json,
    $7::text::integer
  ) f`)

export const forgetExpiredClaims = statement(
  'select {schema}.claim_forget_expired($1::text::integer)::text as count',
)

export const decideClaim = statement(`
  select {schema}.claim_decide(
    $1::text::text, $2::text::text, $3::text::text, $4::text::json, $5::text::bigint, $6::text::boolean
  )::text as told`)
