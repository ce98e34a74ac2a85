// One read-modify-write of a row, by each tool that docs/choosing.md compares: how fast, how often again, and what is lost.
// Sixteen callers in four instances with pools of their own, as four pods would have them.
import { createHash } from 'node:crypto'
import pg from 'pg'
import { BusyError, ConflictError, Dibs, keyOf, retryOnConflict } from '../dist/index.js'

const PODS = 4
const CALLERS = 4 // of each pod, which has as many connections
const ROWS = 1_000
const STOCK = 1_000_000_000
const WORK_MS = 50

/** True for errors of a tool that gave up without changing anything. */
const isGivenUp = (error) => error instanceof ConflictError || error instanceof BusyError

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

/** A chain of hashes: the next link is made of the one before, and not by the database. */
const next = ({ links, hash }) => ({
  links: links + 1,
  hash: createHash('sha256').update(hash).digest('hex'),
})

export async function choosingContest(url) {
  const pods = await Promise.all(Array.from({ length: PODS }, () => openPod(url)))
  const watch = new pg.Client(url)
  watch.on('error', () => {}) // it ends with the server
  await watch.connect()
  await watch.query(`
    create table if not exists choosing_stock (id int primary key, n int not null check (n >= 0), version int not null);
    create table if not exists choosing_text (id int primary key, text jsonb not null, version int not null)`)

  const on = (tools, spread, options) =>
    Object.fromEntries(
      Object.entries(tools).map(([name, tool]) => [
        name,
        (ms) => measure({ pods, watch, tool, spread, isWrong: name.includes('WRONG'), ...options }, ms),
      ]),
    )
  const contest = (name, contestants) => ({ name, inFlight: PODS * CALLERS, measures: true, contestants })

  return {
    contests: [
      contest('choosing: take one, 1,000 rows', on({ ...atomic, ...general(takeOne) }, ROWS, takeOne)),
      contest('choosing: take one, 1 row', on({ ...atomic, ...general(takeOne) }, 1, takeOne)),
      contest('choosing: computed in JavaScript, 1,000 rows', on(general(chain), ROWS, chain)),
      contest('choosing: computed in JavaScript, 1 row', on(general(chain), 1, chain)),
      contest('choosing: 50 ms of work outside, 1 row', {
        ...on({ ...general(takeOne, outside), ...taken }, 1, { ...takeOne, isLong: true }),
        ...on(reserved, 1, { ...used(pods), isLong: true }),
      }),
    ],
    async close() {
      await Promise.all(pods.map((pod) => pod.close()))
      await watch.end()
    },
  }
}

async function openPod(url) {
  const pool = new pg.Pool({ connectionString: url, max: CALLERS })
  pool.on('error', () => {}) // of connections that end with the server
  const dibs = await Dibs.open({ pool })
  return {
    pool,
    dibs,
    stock: dibs.quota('choosing', { limit: STOCK, waitMs: 5_000 }),
    async close() {
      await dibs.close()
      await pool.end()
    },
  }
}

/** The row is a number, and one is taken from it. */
const takeOne = {
  table: 'choosing_stock',
  column: 'n',
  change: (n) => n - 1,
  reset: (db) =>
    db.query(
      `truncate choosing_stock; insert into choosing_stock select i, ${STOCK}, 0 from generate_series(0, ${ROWS - 1}) i`,
    ),
  /** How many changes are in the table. */
  count: async (db) => {
    const { rows } = await db.query(`select sum(${STOCK} - n)::int as n from choosing_stock`)
    return rows[0].n
  },
}

/** The row is JSON, and the next is made of it in JavaScript. */
const chain = {
  table: 'choosing_text',
  column: 'text',
  change: next,
  reset: (db) =>
    db.query(
      `truncate choosing_text; insert into choosing_text select i, '{"links": 0, "hash": ""}', 0 from generate_series(0, ${ROWS - 1}) i`,
    ),
  count: async (db) => {
    const { rows } = await db.query('select text from choosing_text')
    for (const { text } of rows) {
      let made = { links: 0, hash: '' }
      while (made.links < text.links) made = next(made)
      if (made.hash !== text.hash) throw new Error(`a chain of ${text.links} was broken`)
    }
    return rows.reduce((sum, { text }) => sum + text.links, 0)
  },
}

const atomic = {
  'UPDATE … where n >= 1, by hand': async ({ pool }, id) => {
    const { rowCount } = await pool.query({
      name: 'choosing-take',
      text: 'update choosing_stock set n = n - 1, version = version + 1 where id = $1 and n >= 1',
      values: [id],
    })
    if (rowCount !== 1) throw new Error('sold out')
  },
  'atomic SQL: adjust': ({ dibs }, id) => dibs.rows.adjust('choosing_stock', id, { n: -1 }),
}

const nothing = () => {}
const outside = () => wait(WORK_MS)

/** A tool is given the pod, the row, and what to call each time that it begins. `work` is done between read and write. */
function general({ table, column, change }, work = nothing) {
  const read = async (db, id, how = '') => {
    const text = `select ${column} as value, version from ${table} where id = $1${how}`
    return (await db.query({ name: `choosing-read-${table}${how}`, text, values: [id] })).rows[0]
  }
  const write = (db, id, value, version) => {
    const text = `update ${table} set ${column} = $2, version = version + 1 where id = $1`
    return version === undefined
      ? db.query({ name: `choosing-write-${table}`, text, values: [id, value] })
      : db.query({
          name: `choosing-versioned-${table}`,
          text: `${text} and version = $3`,
          values: [id, value, version],
        })
  }
  return {
    'pessimistic: rows.lock': ({ dibs }, id, begins) =>
      dibs.transaction(async (tx) => {
        begins()
        const [row] = await dibs.rows.lock(table, [id], { tx })
        await work()
        await write(tx.client, id, change(row[column]))
      }),
    'pessimistic, by hand: select … for update': async ({ pool }, id, begins) => {
      const client = await pool.connect()
      try {
        await client.query('begin')
        begins()
        const { value } = await read(client, id, ' for update')
        await work()
        await write(client, id, change(value))
        await client.query('commit')
      } catch (error) {
        await client.query('rollback')
        throw error
      } finally {
        client.release()
      }
    },
    'optimistic: rows.update, retried': ({ dibs, pool }, id, begins) =>
      retryOnConflict(async () => {
        begins()
        const { value, version } = await read(pool, id)
        await work()
        await dibs.rows.update(table, { id, version }, { [column]: change(value) })
      }),
    'optimistic, by hand: 3 attempts, 50 and 100 ms apart': async ({ pool }, id, begins) => {
      for (let attempt = 1; attempt <= 3; attempt++) {
        begins()
        const { value, version } = await read(pool, id)
        await work()
        if ((await write(pool, id, change(value), version)).rowCount === 1) return
        await wait(50 * attempt)
      }
      throw new ConflictError({ subject: table })
    },
    'lease lock + guard: withLock': ({ dibs, pool }, id, begins) =>
      dibs.withLock(keyOf(table, id), {}, async (lock) => {
        begins()
        const { value } = await read(pool, id)
        await work()
        await dibs.transaction(async (tx) => {
          await lock.guard(tx)
          await write(tx.client, id, change(value))
        })
      }),
    'SERIALIZABLE: dibs.transaction': ({ dibs }, id, begins) =>
      dibs.transaction(
        async (tx) => {
          begins()
          const { value } = await read(tx.client, id)
          await work()
          await write(tx.client, id, change(value))
        },
        { isolation: 'serializable' },
      ),
    'WRONG: read, lastWriteWins': async ({ dibs, pool }, id, begins) => {
      begins()
      const { value } = await read(pool, id)
      await work()
      await dibs.rows.lastWriteWins(table, id, { [column]: change(value) })
    },
  }
}

/** The work does not depend on the row: these tools take from it first, then work without a row lock. */
const taken = {
  'atomic SQL: adjust, then the work': async ({ dibs }, id, begins) => {
    begins()
    await dibs.rows.adjust('choosing_stock', id, { n: -1 })
    await outside()
  },
}
const reserved = {
  'quota: reserve, the work, settle': async ({ stock }, id, begins) => {
    begins()
    const hold = await stock.reserve(String(id), 1)
    await outside()
    await hold.settle()
  },
}

/** The row is a counter of a quota, which cannot be set back: what was used before is taken off. */
function used(pods) {
  const peek = async () => {
    const { used, held } = await pods[0].stock.peek('0')
    if (held) throw new Error(`${held} are still held`)
    return used
  }
  let before = 0
  return {
    reset: async () => {
      before = await peek()
    },
    count: async () => (await peek()) - before,
  }
}

/** All callers at once for so long, and then what is in the table held against what they were told. */
async function measure({ pods, watch, tool, spread, isWrong, isLong, reset, count }, ms) {
  await reset(watch)
  const tally = { runs: 0, givenUp: 0, inTime: 0, took: [] }
  const startedAt = performance.now()
  const until = startedAt + (isLong ? 2 * ms : ms)
  const caller = async (pod) => {
    while (performance.now() < until) {
      const from = performance.now()
      const id = Math.floor(Math.random() * spread)
      try {
        await tool(pod, id, () => tally.runs++)
        tally.took.push(performance.now() - from)
        if (performance.now() < until) tally.inTime++
      } catch (error) {
        if (!isGivenUp(error)) throw error
        tally.givenUp++
      }
    }
  }
  const watching = isLong ? watchServer(pods, watch, until) : undefined
  await Promise.all(pods.flatMap((pod) => Array.from({ length: CALLERS }, () => caller(pod))))
  const seen = await watching
  const lost = tally.took.length - (await count(watch))
  if (lost !== 0 && !isWrong) throw new Error(`${tool.name || 'a tool'} has lost ${lost} updates`)
  // Calls that end after `until` have the row almost to themselves: `lost` includes them, `perSecond` does not.
  return { perSecond: (tally.inTime * 1000) / (until - startedAt), ...detailsOf(tally, lost), ...seen }
}

function detailsOf({ runs, givenUp, took }, lost) {
  const sorted = took.toSorted((a, b) => a - b)
  const at = (part) => Number(sorted[Math.floor((sorted.length - 1) * part)]?.toFixed(1))
  return {
    'p50 ms': at(0.5),
    'p99 ms': at(0.99),
    'runs for a success': Number((Math.max(runs, took.length) / took.length).toFixed(2)),
    'gave up %': Number(((100 * givenUp) / (givenUp + took.length)).toFixed(1)),
    'lost %': Number(((100 * lost) / took.length).toFixed(1)),
  }
}

/** How many connections have a transaction open, and how long a query of the same pools takes that has nothing to do with it. */
async function watchServer(pods, watch, until) {
  const open = []
  const took = []
  while (performance.now() < until - 100) {
    await wait(20)
    const { rows } = await watch.query(`
      select count(*)::int as n from pg_stat_activity
      where datname = current_database() and xact_start is not null and pid <> pg_backend_pid()`)
    open.push(rows[0].n)
    const from = performance.now()
    await pods[open.length % pods.length].pool.query('select 1')
    took.push(performance.now() - from)
  }
  const sorted = took.toSorted((a, b) => a - b)
  return {
    'connections in a transaction': Number((open.reduce((a, b) => a + b, 0) / open.length).toFixed(1)),
    'another query, p50 ms': Number(sorted[Math.floor(sorted.length / 2)].toFixed(1)),
    'another query, longest': Number(sorted.at(-1).toFixed(1)),
  }
}
