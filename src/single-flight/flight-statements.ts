import { statement } from '../postgres/statement.js'

/** See sql/0025_flight.sql for the functions of these statements: what each locks, and why two callers cannot both win. */
export const beginFlight = statement(
  'select {schema}.flight_begin($1::text, $2::text::bigint, $3::text, $4::text::bigint, $5::text::integer, $6::text::double precision)::text as result',
)

export const finishFlight = statement(
  'select {schema}.flight_publish($1::text, $2::text, $3::text::bigint, $4::text::json, $5::text::json, $6::text::bigint, $7::text::bigint, $8::text::bigint, $9::text::bigint, $10::text::integer)::text as result',
)

export const dropFlight = statement(
  'select {schema}.flight_invalidate($1::text, $2::text::bigint, $3::text::integer)::text as state',
)

export const rejectFlight = statement(
  'select {schema}.flight_reject($1::text, $2::text::bigint, $3::text::integer)::text as state',
)

export const forgetFlights = statement(
  'select {schema}.flight_delete_expired($1::text::integer)::text as count',
)

/** The last value, however old it is, unless the key was forgotten since. */
export const lastValue = statement(
  `select f.value::text as "value" from {schema}.flight f
  where f.key operator(pg_catalog.=) $1::text and f.fence operator(pg_catalog.>) f.forgotten_fence`,
  { readOnly: true },
)
