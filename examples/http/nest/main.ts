// A Nest application whose orders are placed once, and whose payments are made once, however often a client asks.
//   npx tsc -p examples/http/nest && node generated/nest-example/main.js
//   curl -i localhost:3000/orders -H 'Idempotency-Key: "1"' -H 'X-User: ann' -H 'Content-Type: application/json' -d '{"item":"tea"}'
import 'reflect-metadata'
import {
  Body,
  type CanActivate,
  Controller,
  type ExecutionContext,
  Get,
  Header,
  HttpCode,
  Injectable,
  Module,
  Post,
  UnauthorizedException,
} from '@nestjs/common'
import { APP_GUARD, NestFactory } from '@nestjs/core'
import { type Claim, Dibs, type Transaction } from 'dibs'
import { IdempotencyModule, Idempotent, LeasedClaim, RateLimited, Tx } from 'dibs/nest'

const dibs = await Dibs.open()
await dibs.pool.query('create table if not exists orders (id bigserial primary key, item text not null)')
const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })

/** In place of your authentication. */
@Injectable()
class Authentication implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    if (context.switchToHttp().getRequest().headers['x-user']) return true
    throw new UnauthorizedException('Who are you?')
  }
}

/** A bank that knows a repetition by its key. */
@Injectable()
class Bank {
  readonly #paid = new Map<string, { payment: number; amount: number }>()

  async pay(amount: number, key: string): Promise<{ payment: number; amount: number }> {
    const paid = this.#paid.get(key) ?? { payment: this.#paid.size + 1, amount }
    this.#paid.set(key, paid)
    return paid
  }
}

@Controller()
@RateLimited(api, { subject: (request) => request.headers['x-user'] })
class Shop {
  constructor(private readonly bank: Bank) {}

  /** All in this database: the order and its answer are there together, or neither is. */
  @Post('orders')
  @Idempotent()
  async placeOrder(@Body('item') item: string, @Tx() tx: Transaction): Promise<object> {
    const { rows } = await tx.query<{ id: string }>('insert into orders (item) values ($1) returning id', [
      item,
    ])
    return { id: rows[0]?.id, item }
  }

  /** Something outside: the claim is made first, and the bank is told a key that is the same in every attempt. */
  @Post('payments')
  @HttpCode(200)
  @Header('cache-control', 'no-store')
  @Idempotent({ mode: 'leased' })
  async pay(@Body('amount') amount: number, @LeasedClaim() claim: Claim): Promise<object> {
    return await claim.step('pay', () => this.bank.pay(amount, claim.idempotencyKey))
  }

  @Get('orders')
  async orders(): Promise<object[]> {
    const { rows } = await dibs.pool.query('select id, item from orders order by id')
    return rows
  }
}

@Module({
  imports: [IdempotencyModule.forRoot({ dibs, scope: (request) => ['shop', request.headers['x-user']] })],
  controllers: [Shop],
  providers: [Bank, { provide: APP_GUARD, useClass: Authentication }],
})
class App {}

const app = await NestFactory.create(App, { logger: ['error', 'warn'] })
await app.listen(process.env.PORT ?? 3000)
console.log(`listening on ${(await app.getUrl()).replace('[::1]', 'localhost')}`)
process.once('SIGTERM', async () => {
  await app.close()
  await dibs.close()
})
