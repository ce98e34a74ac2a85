// The program of child.process.test.ts as a process of its own.
import pg from 'pg'
import { transfer } from './transfer-code.mjs'

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
await transfer(pool)
await pool.end()
