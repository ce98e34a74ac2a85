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
import type { RateLimit } from '../../claims/rate-limit/rate-limit.js'
import type { Dibs } from '../../dibs.js'
import { Idempotency } from '../idempotency/idempotency.js'
import type { IdempotencyOptions } from '../idempotency/idempotency-options.js'
import { claimed, findClaimed } from '../idempotency/request-claim.js'
import { type RateLimitedOptions, RouteRateLimit } from '../rate-limit/route-rate-limit.js'
import { answerOverNode } from './node-exchange.js'
import { parsedBody } from './parsed-body.js'
import { sendResponse, silence } from './send-response.js'

export type { IdempotencyOptions, OwnTransaction } from '../idempotency/idempotency-options.js'
export { type Claimed, claimed } from '../idempotency/request-claim.js'
export type { RateLimitedOptions } from '../rate-limit/route-rate-limit.js'

/** A request of Express or of Fastify, depending on what Nest runs on. */
// biome-ignore lint/suspicious/noExplicitAny: the application knows its framework and what its guards add
export type NestRequest = any

/** The options of all `@Idempotent()` routes. Each route can have its own options. */
export interface IdempotencyModuleOptions extends IdempotencyOptions<NestRequest, unknown> {
  readonly dibs: Dibs
}

const OPTIONS = Symbol('dibs.idempotency')
const ROUTE = 'dibs:idempotency'

/** Whether the handler of the current request was reached. Pipes, which validate, run after interceptors. */
const begun = new AsyncLocalStorage<{ hasBegun: boolean }>()

interface Platform {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  /** Headers that Fastify has not passed to the response yet. */
  readonly before: OutgoingHttpHeaders
}

/** Returns Node's own objects. Over Express the request and response are these; over Fastify they are behind `raw`. */
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
 * Runs in front of `@Idempotent()` routes, behind guards and in front of pipes. The decorator adds the interceptor.
 *
 * @example
 * const interceptor = new IdempotencyInterceptor({ dibs, scope: (request) => [request.user.tenant, request.user.id] })
 */
export class IdempotencyInterceptor implements NestInterceptor {
  readonly #options: IdempotencyModuleOptions
  readonly #middlewares = new WeakMap<object, Idempotency<NestRequest>>()

  constructor(options: IdempotencyModuleOptions) {
    this.#options = options
  }

  intercept(context: ExecutionContext, next: CallHandler): Promise<Observable<unknown>> {
    const source = context.switchToHttp().getRequest<NestRequest>()
    const { request, response, before } = platformOf(context)
    const run = { hasBegun: false }
    return new Promise((resolve, reject) => {
      answerOverNode(this.#middlewareOf(context.getHandler()), {
        source,
        request,
        response,
        before,
        target: source.originalUrl ?? request.url ?? '/',
        body: () => parsedBody(request, source, 'leave the body parser of Nest on'),
        // Run the handler in the async context of this call, such as its transaction, and not in the context from which Nest calls it later.
        callHandler: () => resolve(defer(AsyncResource.bind(() => begun.run(run, () => next.handle())))), // guard: http.nest-transaction
        hasBegun: () => run.hasBegun,
        async send(other) {
          for (const [name, value] of Object.entries(before))
            if (value !== undefined) response.setHeader(name, value)
          await sendResponse(response, other)
          // Nest itself sends whatever an interceptor returns.
          silence(response)
          resolve(of(undefined))
        },
      }).catch(reject)
    })
  }

  #middlewareOf(handler: object): Idempotency<NestRequest> {
    const known = this.#middlewares.get(handler)
    if (known) return known
    const { dibs, ...options } = this.#options
    const middleware = new Idempotency<NestRequest>(dibs, { ...options, ...readMetadata(ROUTE, handler) })
    this.#middlewares.set(handler, middleware)
    return middleware
  }
}

// Plain calls in place of decorator syntax.
Injectable()(IdempotencyInterceptor)
Inject(OPTIONS)(IdempotencyInterceptor, undefined, 0)

/** The functions of `reflect-metadata`, which Nest installs. */
const reflect = Reflect as unknown as {
  getMetadataKeys(target: object): unknown[]
  getMetadata(key: unknown, target: object): unknown
  defineMetadata(key: unknown, value: unknown, target: object): void
}

const readMetadata = (key: unknown, target: object): object => reflect.getMetadata(key, target) as object

/**
 * Provides the `Idempotency-Key` middleware to the whole application. Routes turn it on with `@Idempotent()`.
 *
 * @example
 * const module = IdempotencyModule.forRoot({ dibs, scope: (request) => [request.user.tenant, request.user.id] })
 */
// biome-ignore lint/complexity/noStaticOnlyClass: as Nest has modules
export class IdempotencyModule {
  static forRoot(options: IdempotencyModuleOptions): DynamicModule {
    return IdempotencyModule.forRootAsync({ useFactory: () => options })
  }

  /** Like `forRoot`, with options that need other modules. */
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
 * Puts the `Idempotency-Key` middleware in front of a route. The options replace those of the module. If a pipe refuses a request before the handler runs,
 * that response is not stored.
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
    // Nest finds the metadata of a route on its function, so copy it to the wrapper.
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
 * Injects the transaction into a parameter of a joined route. Nest does not check the type of a decorated parameter. If the route has the option
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
 * Injects the claim into a parameter of a leased route.
 *
 * @example
 * // pay(@Body('amount') amount: number, @LeasedClaim() claim: Claim)
 * const parameter = LeasedClaim()
 */
export const LeasedClaim: () => ParameterDecorator = createParamDecorator(
  (_: unknown, context: ExecutionContext) => claimed(context.switchToHttp().getRequest()).claim,
)

/**
 * Puts a rate limit in front of a route or a controller. A refused request gets 429 with `Retry-After`. Allowed and refused requests both get `RateLimit`
 * headers. Pass a function if the limit is created later.
 *
 * @example
 * const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
 * const decorator = RateLimited(() => api, { subject: (request) => request.ip })
 */
export function RateLimited(
  limit: RateLimit | (() => RateLimit),
  options: RateLimitedOptions<NestRequest>,
): MethodDecorator & ClassDecorator {
  const routeLimit = new RouteRateLimit<NestRequest>(limit, options)
  const guard: CanActivate = {
    async canActivate(context) {
      const { response } = platformOf(context)
      const { headers, refusal } = await routeLimit.check(context.switchToHttp().getRequest())
      for (const [name, value] of refusal?.headers ?? headers) response.setHeader(name, value)
      if (refusal) throw new HttpException((await refusal.json()) as object, refusal.status)
      return true
    },
  }
  return UseGuards(guard)
}
