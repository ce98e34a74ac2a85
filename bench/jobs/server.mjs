import pg from 'pg'

/** Statistics as of now for all contestants, and not for whom autovacuum happened to come by. */
export async function analyze(url, schema, how = 'analyze') {
  await withClient(url, async (client) => {
    const { rows } = await client.query('select tablename from pg_tables where schemaname = $1', [schema])
    for (const { tablename } of rows)
      await client.query(`${how} ${schema}.${client.escapeIdentifier(tablename)}`)
  })
}

/** @returns what `work` returns */
export async function withClient(url, work) {
  const client = new pg.Client(url)
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}
