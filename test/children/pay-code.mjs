// Work whose effects are rows of another table, under a claim that commits first.
const LEASE_MS = 600_000

const payUnder = (db, key) => db.query('insert into paid (key) values ($1) on conflict do nothing', [key])

/** One leased claim: three statements. */
async function payOnce(db, database, { onceOn }) {
  const spec = { scope: 's', key: 'k', mode: 'leased', leaseMs: LEASE_MS }
  await onceOn(database)(spec, async (claim) => {
    await payUnder(db, claim.idempotencyKey)
    return claim.idempotencyKey
  })
}

/** An operation of two steps: six statements. */
async function payInSteps(db, database, { Operation }) {
  const operation = new Operation(
    database,
    'pay',
    { leaseMs: LEASE_MS, maxAttempts: 20 },
    async (_, claim) => {
      for (const name of ['pay', 'tip'])
        await claim.step(name, ({ idempotencyKey }) => payUnder(db, idempotencyKey).then(() => name))
    },
  )
  await operation.run({ amount: 7 }, { key: 'k' })
}

/** The payments by name: the function that pays, and the number of rows that it writes. */
export const payments = {
  leased: { pay: payOnce, rows: 1 },
  operation: { pay: payInSteps, rows: 2 },
}

/** `parts` are those of the source in a test, and of what is built in a process of its own. */
export async function pay(how, db, schema, parts) {
  const database = new parts.Database(db, { schema, prepared: true })
  await payments[how].pay(db, database, parts)
  await database.close()
}
