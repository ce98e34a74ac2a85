import { statement } from '../postgres/statement.js'

/** See sql/0011_lock.sql. */
export const forgetLocks = statement('select {schema}.lock_forget($1::text::integer)::text as count')
