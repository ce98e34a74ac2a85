// One leased claim whose effect is a row of another table: three statements.
export async function pay(db, schema, { Database, onceOn }) {
  const own = new Database(db, { schema, prepared: false })
  const spec = { scope: 's', key: 'k', mode: 'leased', leaseMs: 600_000 }
  await onceOn(own)(spec, async (claim) => {
    await db.query('insert into paid (key) values ($1) on conflict do nothing', [claim.idempotencyKey])
    return claim.idempotencyKey
  })
  await own.close()
}
