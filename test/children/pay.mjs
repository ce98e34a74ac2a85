import pg from 'pg'
import { onceOn } from '../../dist/claims/once.js'
import { Database } from '../../dist/postgres/database.js'
import { pay } from './pay-code.mjs'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
pool.on('error', () => {})
await pay(pool, process.env.PAY_SCHEMA, { Database, onceOn })
await pool.end()
