import { FastifyAdapter } from '@nestjs/platform-fastify'
import { unpackStream } from '../scenario.mjs'
import { serve } from './nest.mjs'

await serve(new FastifyAdapter({ routerOptions: { maxParamLength: 1_000 } }), (app) => {
  const fastify = app.getHttpAdapter().getInstance()
  fastify.addHook('onRequest', async (_request, reply) => {
    reply.header('x-outer', 'there')
  })
  fastify.addHook('preParsing', unpackStream)
  for (const type of ['multipart/form-data', 'application/octet-stream'])
    fastify.addContentTypeParser(type, { parseAs: 'buffer' }, (_request, body, done) => done(null, body))
})
