// A server that is further away: a forwarder in a thread of its own, which keeps everything for a while in both directions.
import { connect, createServer } from 'node:net'
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads'

/** One way; a timer cannot do less. */
const DELAY_MS = 1

/** @returns the way to the same server, two milliseconds longer there and back */
export async function moveAway(url) {
  const worker = new Worker(new URL(import.meta.url), { workerData: url })
  const port = await new Promise((resolve, reject) => {
    worker.once('message', resolve)
    worker.once('error', reject)
  })
  const moved = new URL(url)
  moved.hostname = '127.0.0.1'
  moved.port = port
  return { url: moved.href, close: () => worker.terminate() }
}

if (!isMainThread && workerData) {
  const { hostname, port } = new URL(workerData)
  const forward = (from, to) => {
    from.on('data', (chunk) => setTimeout(() => to.write(chunk), DELAY_MS))
    from.on('close', () => to.destroy())
    from.on('error', () => to.destroy())
  }
  const server = createServer({ noDelay: true }, (client) => {
    const upstream = connect({ host: hostname, port: Number(port), noDelay: true })
    forward(client, upstream)
    forward(upstream, client)
  })
  server.listen(0, '127.0.0.1', () => parentPort.postMessage(server.address().port))
}
