import { claimed, idempotency, rateLimit } from 'dibs/express'
import { announce, api, dibs, limited, optionsOf, render, routes } from '../scenario.mjs'

/** Makes the app of Express 4 or 5. */
export function serve(express) {
  const headerOf = (request, name) => request.get(name)
  const app = express()
  app.disable('x-powered-by')
  app.use((_request, response, next) => {
    response.setHeader('x-outer', 'there')
    next()
  })
  app.use(express.json())
  app.use(express.raw({ type: ['multipart/form-data', 'application/octet-stream'] }))
  for (const route of routes) {
    const handler = async (request, response, next) => {
      try {
        const answer = await route.handle({
          claimed: (transaction) => claimed(request, transaction),
          body: request.body,
          params: request.params,
          header: (name) => headerOf(request, name),
        })
        const { body, headers } = render(answer)
        response.status(answer.status).set(headers)
        if (body === undefined) response.end()
        else response.send(Buffer.isBuffer(body) || headers['content-type'] ? body : String(body))
      } catch (error) {
        next(error)
      }
    }
    app[route.method.toLowerCase()](route.path, idempotency(dibs, optionsOf(route, headerOf)), handler)
  }
  const usual = idempotency(dibs, optionsOf({}, headerOf))
  app.post('/events', usual, (_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write('data: 1\n\n')
  })
  app.post('/piped', usual, async (_request, response) => {
    const { Readable } = await import('node:stream')
    Readable.from(['a', 'b']).pipe(response)
  })
  app.post(
    '/validated',
    (request, response, next) => (request.body?.item ? next() : response.status(400).json({ bad: true })),
    usual,
    (_request, response) => response.json({ fine: true }),
  )
  app.get('/limited', rateLimit(api, limited(headerOf)), (_request, response) =>
    response.json({ fine: true }),
  )
  app.use((error, _request, response, next) => {
    if (response.headersSent) return next(error)
    response.status(error.status >= 500 ? error.status : 500).json({ error: error.message })
  })
  const server = app.listen(0, '127.0.0.1', () => announce(server))
}
