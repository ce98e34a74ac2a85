// The loop that one would write by hand for the one case that is measured, and so the limit to aim at: no framework, prepared statements, a few
// connections, each of which claims a batch, runs it and writes its outcomes.
import pg from 'pg'
import { fillOf, statementsOf, tablesOf } from './by-hand-sql.mjs'
import { coalesce } from './coalesce.mjs'
import { payloadOf } from './payload.mjs'

const LOOPS = Number(process.env.BENCH_HAND_LOOPS ?? 3)
const POLL_MS = 1_000

export async function openByHand({
  url,
  schema,
  fence,
  history,
  connections,
  hints,
  setUp,
  batch,
  coalesces,
}) {
  const pool = new pg.Pool({ connectionString: url, max: connections })
  pool.on('error', () => {})
  const shape = { schema, fence, history, hints }
  if (setUp) await pool.query(tablesOf(shape))
  const sql = statementsOf(shape)

  const addMany = (payloads) => pool.query(sql.addMany([payloads.map((payload) => JSON.stringify(payload))]))

  async function work({ concurrency, instances = LOOPS, onStart }) {
    const size = batch ?? concurrency
    const own = new pg.Pool({
      connectionString: url,
      max: Math.min(instances, LOOPS),
      // Planned for the arrays at hand, the server may take a batch for large enough to read the whole table.
      options: '-c plan_cache_mode=force_generic_plan',
    })
    own.on('error', () => {})
    const idle = await openIdle(hints ? url : undefined, schema)
    let stopped = false
    const loop = async (_, n) => {
      while (!stopped) {
        const { rows } = await own.query(sql.claim(fence ? [size, `${process.pid}:${n}`] : [size]))
        if (rows.length > 0) {
          for (const { payload } of rows) onStart(payload)
          await own.query(sql.end(fence ? [rows.map(idOf), rows.map(fenceOf)] : [rows.map(idOf)]))
        }
        // A full batch says that there is more.
        if (rows.length < size && !stopped) await idle.wait(hints ? POLL_MS : 5)
      }
    }
    const loops = Array.from({ length: instances }, loop)
    return {
      knobs: { batch: size, loops: instances, connections: own.options.max },
      async stop() {
        stopped = true
        idle.wakeAll()
        await Promise.all(loops)
        await idle.close()
        await own.end()
      },
    }
  }

  return {
    connections,
    addMany,
    addOne: coalesces ? coalesce(addMany) : (payload) => pool.query(sql.addOne([JSON.stringify(payload)])),
    work,
    async outcomes() {
      const { rows } = await pool.query(
        `select (select count(*)::int from ${schema}.job) as left${
          history ? `, (select count(*)::int from ${schema}.history) as ended` : ''
        }`,
      )
      return rows[0]
    },
    clear: () => pool.query(`truncate ${schema}.job${history ? `, ${schema}.history` : ''}`),
    fill: ({ kind, count }) => pool.query(fillOf(shape)[kind], [count, JSON.stringify(payloadOf(-1))]),
    close: () => pool.end(),
  }
}

const idOf = ({ id }) => id
const fenceOf = ({ fence }) => fence

/** Where a loop without work waits. A hint wakes one of them: it is one job, and who finds a full batch goes on anyway. */
async function openIdle(url, channel) {
  const waiting = new Set()
  const wakeOne = () => {
    const [first] = waiting
    first?.()
  }
  const listener = url && new pg.Client(url)
  if (listener) {
    listener.on('error', () => {})
    listener.on('notification', wakeOne)
    await listener.connect()
    await listener.query(`listen ${channel}`)
  }
  return {
    wait: (ms) =>
      new Promise((resolve) => {
        const wake = () => {
          clearTimeout(timer)
          waiting.delete(wake)
          resolve()
        }
        const timer = setTimeout(wake, ms)
        waiting.add(wake)
      }),
    wakeAll() {
      for (const wake of waiting) wake()
    },
    close: () => listener?.end(),
  }
}
