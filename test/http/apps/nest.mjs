import 'reflect-metadata'
import { Readable } from 'node:stream'
import {
  Body,
  Controller,
  Get,
  Header,
  HttpCode,
  Module,
  ParseIntPipe,
  Post,
  Req,
  RequestMapping,
  RequestMethod,
  Res,
  StreamableFile,
} from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { claimed, IdempotencyModule, Idempotent, RateLimited, Tx } from 'dibs/nest'
import { announce, api, base, dibs, limited, optionsOf, render, routes } from '../scenario.mjs'

const headerOf = (request, name) => request.headers[name]

/** Applies decorators, which plain JavaScript does not have. */
function decorate(type, name, decorators, parameters = []) {
  for (const [n, decorator] of parameters.entries()) decorator(type.prototype, name, n)
  for (const decorator of decorators.toReversed()) {
    const descriptor = Object.getOwnPropertyDescriptor(type.prototype, name)
    Object.defineProperty(type.prototype, name, decorator(type.prototype, name, descriptor) ?? descriptor)
  }
}

class Scenario {
  async events(response) {
    const raw = response.raw ?? response
    raw.writeHead(200, { 'content-type': 'text/event-stream' })
    raw.write('data: 1\n\n')
  }

  piped() {
    return new StreamableFile(Readable.from([Buffer.from('a'), Buffer.from('b')]))
  }

  validated() {
    return { fine: true }
  }

  limited() {
    return { fine: true }
  }

  /** With what Nest itself makes of an answer. */
  async plain(item, tx) {
    const { rows } = await tx.query(
      `insert into ${process.env.DIBS_TABLES}.effects (what) values ($1) returning id`,
      [item],
    )
    return { id: rows[0].id, item }
  }
}
routes.forEach((route, n) => {
  const name = `route${n}`
  Scenario.prototype[name] = async (request, response) => {
    const answer = await route.handle({
      claimed: (transaction) => claimed(request, transaction),
      body: request.body,
      params: request.params,
      header: (header) => headerOf(request, header),
    })
    const { body, headers } = render(answer)
    if (response.raw) return response.code(answer.status).headers(headers).send(body)
    response.status(answer.status).set(headers)
    if (body === undefined) response.end()
    else response.send(body)
  }
  const mapping = RequestMapping({ path: route.path, method: RequestMethod[route.method] })
  decorate(Scenario, name, [mapping, Idempotent(optionsOf(route, headerOf))], [Req(), Res()])
})
decorate(Scenario, 'events', [Post('/events'), Idempotent()], [Res()])
decorate(Scenario, 'piped', [Post('/piped'), Idempotent()])
decorate(
  Scenario,
  'validated',
  [Post('/validated'), HttpCode(200), Idempotent()],
  [Body('item', new ParseIntPipe())],
)
decorate(Scenario, 'limited', [Get('/limited'), RateLimited(() => api, limited(headerOf))])
decorate(
  Scenario,
  'plain',
  [Idempotent(), Post('/plain'), Header('location', '/plain/1')],
  [Body('item'), Tx()],
)
Controller()(Scenario)

class App {}
Module({
  imports: [IdempotencyModule.forRootAsync({ useFactory: async () => ({ dibs, ...base(headerOf) }) })],
  controllers: [Scenario],
})(App)

/** Over Express or Fastify. */
export async function serve(adapter, prepare) {
  const app = await NestFactory.create(App, adapter, { logger: false })
  await prepare(app)
  await app.listen(0, '127.0.0.1')
  announce(app.getHttpServer())
}
