// A process that uses an embedded server: opens what it is told to, then does what it is asked, until closed or killed.
import { once } from 'node:events'
import { rmSync } from 'node:fs'
import { Dibs, onEvent } from '../../dist/index.js'

const { options, schema = 'dibs' } = JSON.parse(process.argv[2])
const disconnected = new AbortController()
const steps = []
onEvent('dibs:embedded.starting', ({ step }) => steps.push(step))

if (process.env.DIBS_TEST_WAIT) {
  const told = once(process, 'message')
  process.send({ ready: true })
  await told
}
if (process.env.DIBS_TEST_REMOVE_CWD) rmSync(process.cwd(), { recursive: true })

const startedAt = performance.now()
const dibs = await Dibs.open({ embedded: options, schema, listen: false }).catch((error) => {
  process.send({ failed: { ...error.toJSON?.(), message: error.message } })
  process.disconnect()
})
if (dibs) {
  process.on('message', async ({ id, sql, close, idle }) => {
    if (idle) {
      disconnected.abort()
      process.disconnect()
      return
    }
    try {
      if (close) await dibs.close()
      const rows = sql ? (await dibs.pool.query(sql)).rows : []
      process.send({ id, rows, url: dibs.url })
    } catch (error) {
      process.send({ id, error: error.message, code: error.code })
    }
    if (close) process.disconnect()
  })
  process.send({ opened: { url: dibs.url, steps, elapsedMs: performance.now() - startedAt } })
  // The test died: so do we, without a goodbye. Unless we were told to end when there is nothing left to do.
  await once(process, 'disconnect', { signal: disconnected.signal }).then(
    () => process.exit(),
    () => {},
  )
}
