import pg from 'pg'
import { onceOn } from '../../build/claims/once/once.js'
import { Operation } from '../../build/claims/once/operation.js'
import { Database } from '../../build/postgres/database.js'
import { pay } from './pay-code.mjs'

const { DATABASE_URL, PAY_HOW, PAY_SCHEMA } = process.env
const pool = new pg.Pool({ connectionString: DATABASE_URL })
pool.on('error', () => {})
await pay(PAY_HOW, pool, PAY_SCHEMA, { Database, onceOn, Operation })
await pool.end()
