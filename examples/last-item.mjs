// Ten buyers, one item. By hand every one of them reads "1 left" before any has written; dibs.transaction lets
// PostgreSQL refuse that overlap, and runs the refused ones again.
import { BusinessRuleError, Dibs } from 'dibs'

const dibs = await Dibs.open()
const BUYERS = 10

async function restock() {
  await dibs.pool.query(`
    drop table if exists last_item_example;
    create table last_item_example (sku text primary key, left_over int not null);
    insert into last_item_example values ('apple', 1)`)
}

/** Reads, waits for nobody, and writes what it computed. */
async function buy(executor) {
  const { rows } = await executor.query("select left_over as n from last_item_example where sku = 'apple'")
  const n = rows[0].n - 1
  if (n < 0) throw new BusinessRuleError('sold out')
  await executor.query("update last_item_example set left_over = $1 where sku = 'apple'", [n])
}

async function compete(attempt) {
  await restock()
  const results = await Promise.allSettled(Array.from({ length: BUYERS }, attempt))
  const soldOut = results.filter(({ reason }) => reason instanceof BusinessRuleError).length
  const unexpected = results.find(({ reason }) => reason && !(reason instanceof BusinessRuleError))
  if (unexpected) throw unexpected.reason
  return { bought: BUYERS - soldOut, soldOut }
}

// A barrier makes the accident certain, where luck alone would make it rare.
let waiting = 0
let open
const allHaveRead = new Promise((resolve) => {
  open = resolve
})
const byHand = await compete(async () => {
  const { rows } = await dibs.pool.query("select left_over as n from last_item_example where sku = 'apple'")
  if (++waiting === BUYERS) open()
  await allHaveRead
  if (rows[0].n < 1) throw new BusinessRuleError('sold out')
  await dibs.pool.query("update last_item_example set left_over = $1 where sku = 'apple'", [rows[0].n - 1])
})
console.log(`by hand:          ${byHand.bought} bought the last item`)

const right = await compete(() => dibs.transaction(buy, { isolation: 'serializable', deadlineMs: 5_000 }))
console.log(
  `dibs.transaction: ${right.bought} bought the last item, ${right.soldOut} were told it is sold out`,
)
await dibs.pool.query('drop table last_item_example')
await dibs.close()
