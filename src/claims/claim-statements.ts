import { statement } from '../postgres/statement.js'
import { claimColumns } from './claim-row.js'

/** See sql/0004_claim.sql for what each locks and why two callers cannot both win. */
export const beginClaim = statement(`
  select f.state::text as state, f.left_ms::text as left_ms, ${claimColumns},
    (extract(epoch from pg_catalog.clock_timestamp() - pg_catalog.statement_timestamp()) * 1000)::integer::text as waited_ms
  from {schema}.claim_begin(
    $1::text::text, $2::text::text, $3::text::text, $4::text::text, $5::text::text, $6::text::bigint, $7::text::bigint,
    $8::text::integer, $9::text::boolean, $10::text::integer, $11::text::text, $12::text::json, $13::text::json
  ) f`)

export const finishClaim = statement(`
  select f.state::text as state, ${claimColumns}
  from {schema}.claim_finish(
    $1::text::text, $2::text::text, $3::text::bigint, $4::text::{schema}.claim_status, $5::text::json, $6::text::bigint, $7::text::boolean
  ) f`)

export const renewClaim = statement(`
  select {schema}.claim_renew($1::text::text, $2::text::text, $3::text::bigint, $4::text::bigint)::text as state`)

export const stepClaim = statement(`
  select {schema}.claim_step($1::text::text, $2::text::text, $3::text::bigint, $4::text::text, $5::text::text)::text as state`)

export const endClaim = statement(`
  select {schema}.claim_end($1::text::text, $2::text::text, $3::text::bigint, $4::text::bigint)::text as state`)

export const takeOverClaims = statement(`
  select f.state::text as state, ${claimColumns}
  from {schema}.claim_take_over(
    $1::text::text, $2::text::text, $3::text::bigint, $4::text::bigint, $5::text::integer, $6::text::json,
    $7::text::integer
  ) f`)

export const forgetExpiredClaims = statement(
  'select {schema}.claim_forget_expired($1::text::integer)::text as count',
)
