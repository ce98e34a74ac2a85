import { AsyncLocalStorage, AsyncResource } from 'node:async_hooks'
import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import {
  type CallHandler,
  type CanActivate,
  createParamDecorator,
  type DynamicModule,
  type ExecutionContext,
  HttpException,
  Inject,
  Injectable,
  type ModuleMetadata,
  type NestInterceptor,
  SetMetadata,
  UseGuards,
  UseInterceptors,
} from '@nestjs/common'
import { defer, type Observable, of } from 'rxjs'
import type { RateLimit } from '../claims/rate-limit.js'
import type { Dibs } from '../dibs.js'
import { claimed, findClaimed } from './claimed.js'
import { Idempotency } from './idempotency.js'
import { answerOverNode } from './node-exchange.js'
import type { IdempotencyOptions } from './options.js'
import { parsedBody } from './parsed-body.js'
import { RateGate, type RateLimitedOptions } from './rate-gate.js'
import { sendResponse, silence } from './send-response.js'

export { type Claimed, claimed } from './claimed.js'
export type { IdempotencyOptions, OwnTransaction } from './options.js'
export type { RateLimitedOptions } from './rate-gate.js'

/** A request of Express or of Fastify, whichever Nest runs on. */
// biome-ignore lint/suspicious/noExplicitAny: which one, and what guards have put on it, the application knows
export type NestRequest = any

/** The options of all routes that are `@Idempotent()`, each of which can have its own. */
export interface IdempotencyModuleOptions extends IdempotencyOptions<NestRequest, unknown> {
  readonly dibs: Dibs
}

const OPTIONS = Symbol('dibs.idempotency')
const ROUTE = 'dibs:idempotency'

/** Whether the handler of the request at hand was reached: pipes, which validate, come after interceptors. */
const begun = new AsyncLocalStorage<{ hasBegun: boolean }>()

interface Platform {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  /** Headers that Fastify has not handed to the response yet. */
  readonly before: OutgoingHttpHeaders
}

/** Over Express the objects are Node's own, over Fastify these are behind them. */
function platformOf(context: ExecutionContext): Platform {
  const http = context.switchToHttp()
  const request = http.getRequest<NestRequest>()
  const response = http.getResponse<NestRequest>()
  return {
    request: request.raw ?? request,
    response: response.raw ?? response,
    before: response.raw ? response.getHeaders() : {},
  }
}

/**
 * Stands in front of the routes that are `@Idempotent()`, which brings it along; behind guards, in front of pipes.
 *
 * @example
 * const interceptor = new IdempotencyInterceptor({ dibs, scope: (request) => [request.user.tenant, request.user.id] })
 */
export class IdempotencyInterceptor implements NestInterceptor {
  readonly #options: IdempotencyModuleOptions
  readonly #gates = new WeakMap<object, Idempotency<NestRequest>>()

  constructor(options: IdempotencyModuleOptions) {
    this.#options = options
  }

  intercept(context: ExecutionContext, next: CallHandler): Promise<Observable<unknown>> {
    const source = context.switchToHttp().getRequest<NestRequest>()
    const { request, response, before } = platformOf(context)
    const run = { hasBegun: false }
    return new Promise((resolve, reject) => {
      answerOverNode(this.#gateOf(context.getHandler()), {
        source,
        request,
        response,
        before,
        target: source.originalUrl ?? request.url ?? '/',
        body: () => parsedBody(request, source, 'leave the body parser of Nest on'),
        // In what surrounds this call, such as its transaction, and not in what Nest will call it from.
        letGo: () => resolve(defer(AsyncResource.bind(() => begun.run(run, () => next.handle())))),
        hasBegun: () => run.hasBegun,
        async send(other) {
          for (const [name, value] of Object.entries(before))
            if (value !== undefined) response.setHeader(name, value)
          await sendResponse(response, other)
          // Nest answers by itself whatever an interceptor returns.
          silence(response)
          resolve(of(undefined))
        },
      }).catch(reject)
    })
  }

  #gateOf(handler: object): Idempotency<NestRequest> {
    const known = this.#gates.get(handler)
    if (known) return known
    const { dibs, ...options } = this.#options
    const gate = new Idempotency<NestRequest>(dibs, { ...options, ...readMetadata(ROUTE, handler) })
    this.#gates.set(handler, gate)
    return gate
  }
}

// What the decorators would do in a language that has them.
Injectable()(IdempotencyInterceptor)
Inject(OPTIONS)(IdempotencyInterceptor, undefined, 0)

/** Of `reflect-metadata`, which Nest brings along. */
const reflect = Reflect as unknown as {
  getMetadataKeys(target: object): unknown[]
  getMetadata(key: unknown, target: object): unknown
  defineMetadata(key: unknown, value: unknown, target: object): void
}

const readMetadata = (key: unknown, target: object): object => reflect.getMetadata(key, target) as object

/**
 * The `Idempotency-Key` for the whole application. Routes ask for it with `@Idempotent()`.
 *
 * @example
 * const module = IdempotencyModule.forRoot({ dibs, scope: (request) => [request.user.tenant, request.user.id] })
 */
// biome-ignore lint/complexity/noStaticOnlyClass: as Nest has modules
export class IdempotencyModule {
  static forRoot(options: IdempotencyModuleOptions): DynamicModule {
    return IdempotencyModule.forRootAsync({ useFactory: () => options })
  }

  /** The same with options that other modules have a part in. */
  static forRootAsync(options: {
    readonly imports?: ModuleMetadata['imports']
    // biome-ignore lint/suspicious/noExplicitAny: as Nest has it
    readonly inject?: any[]
    // biome-ignore lint/suspicious/noExplicitAny: as Nest has it
    readonly useFactory: (...injected: any[]) => IdempotencyModuleOptions | Promise<IdempotencyModuleOptions>
  }): DynamicModule {
    const { imports = [], inject = [], useFactory } = options
    return {
      module: IdempotencyModule,
      global: true,
      imports,
      providers: [{ provide: OPTIONS, inject, useFactory }],
      exports: [OPTIONS],
    }
  }
}

/**
 * Puts the `Idempotency-Key` in front of a route, with options in place of those of the module. What pipes refuse before the handler is
 * reached is not stored.
 *
 * @example
 * class Orders {
 *   async create(item: string, tx: Transaction): Promise<void> {
 *     await tx.query('insert into orders (item) values ($1)', [item])
 *   }
 * }
 * // as decorators: @Post() @Idempotent() create(@Body('item') item, @Tx() tx)
 * Idempotent({ waitMs: 1_000 })(Orders.prototype, 'create', Object.getOwnPropertyDescriptor(Orders.prototype, 'create') ?? {})
 */
export function Idempotent(options: Partial<IdempotencyOptions<NestRequest, unknown>> = {}): MethodDecorator {
  return (target, property, descriptor) => {
    const handler = descriptor.value as unknown as (...args: unknown[]) => unknown
    const wrapped = function (this: unknown, ...args: unknown[]): unknown {
      const run = begun.getStore()
      if (run) run.hasBegun = true
      return handler.apply(this, args)
    }
    // Nest knows a route by what was noted on its function.
    for (const key of reflect.getMetadataKeys(handler))
      reflect.defineMetadata(key, reflect.getMetadata(key, handler), wrapped)
    Object.defineProperty(wrapped, 'name', { value: handler.name })
    ;(descriptor as PropertyDescriptor).value = wrapped
    for (const decorate of [SetMetadata(ROUTE, options), UseInterceptors(IdempotencyInterceptor)])
      (decorate as MethodDecorator)(target, property, descriptor)
    return descriptor
  }
}

/**
 * A parameter of a joined route: its transaction. Nest does not check the type of a decorated parameter. Where the route has the option
 * `transaction`, `claimed(request, transaction).tx` is checked.
 *
 * @example
 * // create(@Body('item') item: string, @Tx() tx: Transaction)
 * const parameter = Tx()
 */
export const Tx: () => ParameterDecorator = createParamDecorator(
  (_: unknown, context: ExecutionContext) => findClaimed(context.switchToHttp().getRequest()).tx,
)

/**
 * A parameter of a leased route: its claim.
 *
 * @example
 * // pay(@Body('amount') amount: number, @LeasedClaim() claim: Claim)
 * const parameter = LeasedClaim()
 */
export const LeasedClaim: () => ParameterDecorator = createParamDecorator(
  (_: unknown, context: ExecutionContext) => claimed(context.switchToHttp().getRequest()).claim,
)

/**
 * A rate limit in front of a route or a controller: 429 with `Retry-After` when it refuses, `RateLimit` headers in any case. A
 * function stands for a limit that is made later.
 *
 * @example
 * const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
 * const decorator = RateLimited(() => api, { subject: (request) => request.ip })
 */
export function RateLimited(
  limit: RateLimit | (() => RateLimit),
  options: RateLimitedOptions<NestRequest>,
): MethodDecorator & ClassDecorator {
  const gate = new RateGate<NestRequest>(limit, options)
  const guard: CanActivate = {
    async canActivate(context) {
      const { response } = platformOf(context)
      const { headers, refusal } = await gate.check(context.switchToHttp().getRequest())
      for (const [name, value] of refusal?.headers ?? headers) response.setHeader(name, value)
      if (refusal) throw new HttpException((await refusal.json()) as object, refusal.status)
      return true
    },
  }
  return UseGuards(guard)
}
