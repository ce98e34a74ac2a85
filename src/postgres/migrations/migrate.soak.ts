import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, it } from 'vitest'
import { dropSchema, freshName, url, withPool } from '../../../test/database.js'
import { fixtureSources } from '../../../test/fixtures.js'

const script = join(import.meta.dirname, '../../../test/children/migrate.mjs')
const seconds = Number(process.env.SOAK_SECONDS)

/** Ten processes migrate at once and some are killed at a random moment; whoever comes next must finish the work. */
async function round(): Promise<{ killed: number; recordedBefore: number }> {
  const schema = freshName()
  const start = (): ChildProcess => fork(script)
  const order = { url, schema, sources: fixtureSources, prepared: true }
  const children = Array.from({ length: 10 }, start)
  await Promise.all(children.map((child) => once(child, 'message')))
  const exits = children.map((child) => once(child, 'exit'))
  for (const child of children) child.send(order)
  await sleep(Math.random() * 200)
  let killed = 0
  for (const child of children) if (child.kill('SIGKILL')) killed++
  await Promise.all(exits)

  const recordedBefore = await withPool(async (pool) => {
    const { rows } = await pool
      .query(`select count(*)::int as n from "${schema}".migration`)
      .catch(() => ({ rows: [{ n: 0 }] }))
    return rows[0].n
  })
  const last = start()
  await once(last, 'message')
  const answer = once(last, 'message')
  last.send(order)
  expect((await answer)[0]).toEqual({ ok: true })
  await withPool(async (pool) => {
    const { rows } = await pool.query(`select count(*)::int as n from "${schema}".item`)
    expect(rows).toEqual([{ n: 2000 }])
    const { rows: indexes } = await pool.query(
      'select indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid where c.relnamespace = $1::regnamespace and c.relname like $2',
      [schema, 'item_%_idx'],
    )
    expect(indexes).toEqual([{ indisvalid: true }, { indisvalid: true }])
  })
  await dropSchema(schema)
  await dropSchema(`${schema}_own`)
  return { killed, recordedBefore }
}

it('is finished by the next process wherever the earlier ones were killed', async () => {
  const until = Date.now() + seconds * 1000
  const stoppedAt = new Map<number, number>()
  let rounds = 0
  for (; Date.now() < until; rounds++) {
    const { recordedBefore } = await round()
    stoppedAt.set(recordedBefore, (stoppedAt.get(recordedBefore) ?? 0) + 1)
  }
  console.log({ rounds, 'rounds by migrations recorded at the kill': Object.fromEntries(stoppedAt) })
  expect(rounds).toBeGreaterThan(0)
})
