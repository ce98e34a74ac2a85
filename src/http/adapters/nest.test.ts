import 'reflect-metadata'
import {
  BadRequestException,
  Body,
  type CallHandler,
  Controller,
  type ExecutionContext,
  Header,
  type INestApplication,
  Module,
  type NestInterceptor,
  Post,
  Redirect,
  Req,
} from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { ExpressAdapter } from '@nestjs/platform-express'
import { FastifyAdapter } from '@nestjs/platform-fastify'
import { type Observable, tap } from 'rxjs'
import { describe, expect, it, onTestFinished } from 'vitest'
import { openClaims } from '../../../test/claims/open-claims.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import { claimed, IdempotencyModule, Idempotent, Tx } from './nest.js'

const fixture = openClaims()

/** Applies decorators by calling them: these tests have no decorator syntax. */
function decorate(
  type: { prototype: object },
  name: string,
  decorators: MethodDecorator[],
  parameters: ParameterDecorator[] = [],
) {
  for (const [n, parameter] of parameters.entries()) parameter(type.prototype, name, n)
  for (const decorator of decorators.toReversed()) {
    const descriptor = Object.getOwnPropertyDescriptor(type.prototype, name) as PropertyDescriptor
    Object.defineProperty(type.prototype, name, decorator(type.prototype, name, descriptor) ?? descriptor)
  }
}

/** An application of one controller; how it is asked. */
async function serve(
  kind: string,
  controller: new () => object,
  prepare: (app: INestApplication) => void = () => {},
) {
  Controller()(controller)
  class App {}
  Module({
    imports: [IdempotencyModule.forRoot({ dibs: fixture.dibs, scope: 'anonymous' })],
    controllers: [controller],
  })(App)
  const adapter = kind === 'Express' ? new ExpressAdapter() : new FastifyAdapter()
  const app = await NestFactory.create(App, adapter, { logger: false })
  onTestFinished(() => app.close())
  prepare(app)
  await app.listen(0, '127.0.0.1')
  const at = await app.getUrl()
  return async (path: string, body: unknown = {}, key = 'k') => {
    const headers = { 'idempotency-key': key, 'content-type': 'application/json' }
    const answer = await fetch(`${at}${path}`, {
      method: 'POST',
      headers,
      body: JSON.stringify(body),
      redirect: 'manual',
    })
    return {
      status: answer.status,
      isReplay: answer.headers.get('idempotency-replayed') === 'true',
      type: answer.headers.get('content-type'),
      location: answer.headers.get('location'),
      body: await answer.text(),
    }
  }
}

describe.each(['Express', 'Fastify'])('over %s', (kind) => {
  it('replays what Nest makes of an answer, and answers once', async () => {
    class Orders {
      async create(item: string, tx: Transaction) {
        await tx.query(`insert into ${fixture.log} (name) values ($1)`, [item])
        return { item }
      }
      text() {
        return 'tea'
      }
      moved() {}
    }
    decorate(
      Orders,
      'create',
      [Post('/orders'), Header('location', '/orders/1'), Idempotent()],
      [Body('item'), Tx()],
    )
    decorate(Orders, 'text', [Idempotent(), Post('/text')])
    decorate(Orders, 'moved', [Post('/moved'), Redirect('/there', 303), Idempotent()])
    const seen: unknown[] = []
    const ask = await serve(kind, Orders, (app) => {
      const watch: NestInterceptor = {
        intercept: (_: ExecutionContext, next: CallHandler): Observable<unknown> =>
          next
            .handle()
            .pipe(tap({ complete: () => seen.push('complete'), error: (error) => seen.push(error) })),
      }
      app.useGlobalInterceptors(watch)
      app.useGlobalFilters({ catch: (error: unknown) => void seen.push(error) })
    })
    for (const [path, status] of [
      ['/orders', 201],
      ['/text', 201],
      ['/moved', 303],
    ] as const) {
      const first = await ask(path, { item: 'tea' })
      expect(first).toMatchObject({ status, isReplay: false })
      expect(await ask(path, { item: 'tea' })).toEqual({ ...first, isReplay: true })
      expect(await ask(path, { item: 'other' })).toMatchObject({
        status: 422,
        type: 'application/problem+json',
      })
    }
    expect(await fixture.logged()).toEqual(['tea'])
    expect(seen).toEqual(Array.from({ length: 9 }, () => 'complete'))
  })

  it('runs a handler in its transaction', async () => {
    class Nested {
      async create(request: object) {
        const { tx } = claimed(request)
        await tx.query('select 1')
        return await fixture.dibs
          .once({ scope: 's', key: 'inner' }, async () => 1)
          .catch((error) => error.code)
      }
    }
    decorate(Nested, 'create', [Post('/nested'), Idempotent()], [Req()])
    const ask = await serve(kind, Nested)
    expect((await ask('/nested')).body).toBe('DIBS_NESTED_TRANSACTION')
  })

  it('stores what a handler refuses, and not what a pipe does', async () => {
    let runs = 0
    const refusing = {
      transform(body: { item?: string }) {
        if (body.item === undefined) throw new BadRequestException('item is missing')
        return body
      },
    }
    class Orders {
      create(body: { item?: string }) {
        runs++
        if (body.item === 'gone') throw new BadRequestException('no such item')
        return body
      }
    }
    decorate(Orders, 'create', [Post('/orders'), Idempotent()], [Body(refusing)])
    const ask = await serve(kind, Orders)
    const refused = await ask('/orders', { item: 'gone' })
    expect(refused).toMatchObject({ status: 400, isReplay: false })
    expect(await ask('/orders', { item: 'gone' })).toEqual({ ...refused, isReplay: true })
    expect(runs).toBe(1)
    expect(await ask('/orders', {}, 'other')).toMatchObject({ status: 400, isReplay: false })
    expect(await ask('/orders', { item: 'tea' }, 'other')).toMatchObject({ status: 201, isReplay: false })
  })
})
