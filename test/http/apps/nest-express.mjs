import { ExpressAdapter } from '@nestjs/platform-express'
import { serve } from './nest.mjs'

await serve(new ExpressAdapter(), (app) => {
  app.use((_request, response, next) => {
    response.setHeader('x-outer', 'there')
    next()
  })
  app.useBodyParser('raw', { type: ['multipart/form-data', 'application/octet-stream'] })
})
