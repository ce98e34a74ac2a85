import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { dropSchema, freshName, url, viaPgBouncer, withPool } from '../../../test/database.js'
import { fixtureSources } from '../../../test/fixtures.js'

const PROCESSES = 20
const script = join(import.meta.dirname, '../../../test/children/migrate.mjs')

it(`lets ${PROCESSES} processes migrate an empty database at once, with files that run CONCURRENTLY`, async () => {
  const schema = freshName()
  const children: ChildProcess[] = Array.from({ length: PROCESSES }, () => fork(script))
  try {
    await Promise.all(children.map((child) => once(child, 'message'))) // all ready
    const answers = children.map((child) => once(child, 'message'))
    for (const child of children)
      child.send({ url, schema, sources: fixtureSources, prepared: !viaPgBouncer })
    const results = (await Promise.all(answers)).map(([result]) => result)
    expect(results).toEqual(children.map(() => ({ ok: true })))

    await withPool(async (pool) => {
      const { rows: recorded } = await pool.query(`select version from "${schema}".migration order by 1`)
      expect(recorded.map(({ version }) => version)).toEqual([1, 2, 3, 4])
      const { rows: items } = await pool.query(`select count(*)::int as n from "${schema}".item`)
      expect(items).toEqual([{ n: 2000 }]) // the first file ran once
      const { rows: invalid } = await pool.query(
        'select 1 from pg_index i join pg_class c on c.oid = i.indexrelid where c.relnamespace = $1::regnamespace and not indisvalid',
        [schema],
      )
      expect(invalid).toEqual([])
    })
  } finally {
    for (const child of children) child.kill('SIGKILL')
    await dropSchema(schema)
    await dropSchema(`${schema}_own`)
  }
})
