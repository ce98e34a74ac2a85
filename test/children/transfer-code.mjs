// Eight statements: a claim with a lease, two steps of which one is a transaction, and an end.
export async function transfer(db) {
  const { rows } = await db.query(
    `update job set fence = fence + 1, until = now + 30 from clock
      where status = 'ready' and until <= now returning fence`,
  )
  if (rows.length === 0) return
  const { fence } = rows[0]
  await db.query('select balance from account where id = 1')
  const tx = await db.connect()
  try {
    await tx.query('begin')
    const held = await tx.query('update job set step = 1 where fence = $1 and step = 0', [fence])
    if (held.rowCount === 1) {
      await tx.query('update account set balance = balance - 10 where id = 1')
      await tx.query('update account set balance = balance + 10 where id = 2')
    }
    await tx.query('commit')
  } finally {
    tx.release()
  }
  await db.query('insert into log (text) values ($1)', [`claim ${fence}`])
  await db.query(`update job set status = 'done' where fence = $1`, [fence])
}
