// Ten clicks on "pay", all with the same key; then a process dies in the middle of a payment, and another finishes it.
import { spawnSync } from 'node:child_process'
import { Dibs } from 'dibs'

const dibs = await Dibs.open()
/** A bank that knows what it has been asked before by its key. */
const bank = async (key) => {
  const { rowCount } = await dibs.pool.query(
    'insert into once_example_bank values ($1) on conflict do nothing',
    [key],
  )
  return rowCount === 1 ? 'paid' : 'paid before'
}

const pay = dibs.operation('example-pay', { leaseMs: 500 }, async (input, claim) => {
  const answer = await bank(claim.idempotencyKey)
  if (process.env.DIE === '1') process.kill(process.pid, 'SIGKILL') // right after the money has gone
  return `${answer}: ${input.amount}, attempt ${claim.attempt}`
})

if (process.env.DIE === '1') await pay.run({ amount: 10 }, { key: 'order-7' })

await dibs.pool.query(
  'create table once_example (key text); create table once_example_bank (key text primary key)',
)

const clicks = await Promise.all(
  Array.from({ length: 10 }, () =>
    dibs.onceDetailed({ scope: 'example', key: 'click' }, async (tx) => {
      await tx.query("insert into once_example values ('click')")
      return 'paid'
    }),
  ),
)
const { rows } = await dibs.pool.query('select count(*)::int as n from once_example')
const replayed = clicks.filter((click) => click.replayed).length
console.log(`ten clicks: ${rows[0].n} payment, ${replayed} replays of its answer`)

const { signal } = spawnSync(process.execPath, [import.meta.filename], {
  env: { ...process.env, DATABASE_URL: dibs.url, DIE: '1' },
})
console.log(`another process pays, and is ended by ${signal}`)
while ((await dibs.maintain({ once: true })).operationsFinished === 0)
  await new Promise((next) => setTimeout(next, 100))
const { outcome } = await dibs.claims.get({ operation: 'example-pay', key: 'order-7' })
console.log(`this one has finished it: ${outcome}`)

await dibs.pool.query('drop table once_example, once_example_bank')
await dibs.claims.forget({ scope: 'example', key: 'click' })
await dibs.claims.forget({ operation: 'example-pay', key: 'order-7' })
await dibs.close()
