import { statement } from '../../postgres/statement.js'
import { waitedMs } from '../claim-statements.js'

/** See sql/0013_quota_hold.sql, sql/0019_acquire_lock.sql and sql/0020_acquire.sql for the order of locks and why no two callers can wait for each other. */
export const acquireClaims = statement(`
  select {schema}.acquire($1::text::json, $2::text::json, $3::text::text, $4::text::bigint, $5::text::integer,
      $6::text::boolean)::text as result,
    ${waitedMs} as waited`)

export const endAcquired = statement(`
  select {schema}.acquire_end(
    $1::text::json, $2::text::text, $3::text::boolean, $4::text::integer, $5::text::boolean
  )::text as result`)

/** A reservation that the end of the others has left. */
export const endHold = statement(`
  select {schema}.quota_end_hold($1::text::json, $2::text::text, true, $3::text::integer)::text as state`)

export const renewAcquired = statement(`
  select {schema}.acquire_renew($1::text::json, $2::text::text, $3::text::bigint, $4::text::integer)::text as state`)

export const voidSingleton = statement(`
  select {schema}.singleton_void(
    $1::text::text, $2::text::text, $3::text::text, $4::text::boolean, $5::text::json, $6::text::integer
  )::text as result`)
