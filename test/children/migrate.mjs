// One of many processes that migrate at the same moment: tells that it is ready, waits for the word, migrates.
import { once } from 'node:events'
import pg from 'pg'
import { Dibs } from '../../build/index.js'
import { Database } from '../../build/postgres/database.js'
import { migrate } from '../../build/postgres/migrations/migrate.js'
import { readMigrations } from '../../build/postgres/migrations/read-migrations.js'

process.on('message', async ({ url, schema, sources, prepared }) => {
  try {
    const pool = new pg.Pool({ connectionString: url, max: 2 })
    await migrate(new Database(pool, { schema, prepared }), readMigrations(sources))
    await pool.end()
    const dibs = await Dibs.open({ url, schema: `${schema}_own`, prepared, listen: false })
    await dibs.now()
    await dibs.close()
    process.send({ ok: true })
  } catch (error) {
    process.send({ ok: false, error: `${error.stack}` })
  }
  process.disconnect()
})
process.send('ready')
await once(process, 'disconnect')
