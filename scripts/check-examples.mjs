// Every `@example` in src/ and every ts block in README.md and docs/ is compiled against the built package.
import { spawnSync } from 'node:child_process'
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import * as http from '../dist/http.js'
import * as face from '../dist/index.js'
import * as testing from '../dist/testing.js'

const root = join(import.meta.dirname, '..')
const out = join(root, 'generated/examples')

/** Names that examples may use without a declaration, besides the handle of an adapter's library. */
const ambient = `
type Any = any // biome-ignore lint: stands for the reader's own code
declare const dibs: import('dibs').Dibs
declare const pool: import('pg').Pool
declare const error: unknown
declare const response: import('node:http').ServerResponse
declare const request: Request
declare const row: { version: number; ready: boolean }
declare const seen: number
declare const left: number
declare const id: string
declare const key: string
declare const sku: string
declare const orders: Any
declare const tenant: string
declare const body: { item: string; amount: number; from: string; to: string }
declare const bank: {
  pay(amount: number, idempotencyKey: string): Promise<{ id: string }>
  find(idempotencyKey: string): Promise<{ id: string } | undefined>
}
declare const child: string
declare const parent: string
declare const event: { id: string }
declare const requestId: string
declare const points: import('dibs').Quota
declare const tokens: import('dibs').Quota
declare const slot: import('dibs').Slot
declare const lock: import('dibs').Lock
declare const warehouse: import('pg').Pool
declare const day: string
declare const source: string
declare const monitor: import('dibs').Monitor
declare const totals: import('dibs').Aggregate
declare const election: import('dibs').Election
declare const orderId: string
declare const lineId: string
declare const answer: { tokens: number }
declare const prompt: string
declare const model: { ask(prompt: string): Promise<{ tokens: number }> }
declare const mailer: { send(text: string, signal?: AbortSignal): Promise<{ messageId: string }> }
declare const jobs: import('dibs').Jobs<{ email: import('dibs').TypedJob<{ to: string }, { messageId: string }> }>
declare const ctx: import('dibs').JobContext
declare const worker: import('dibs').Worker
declare const users: { email: string }[]
declare const page: number
declare const socket: import('node:net').Socket
declare const z: Any
declare const Order: Any
declare const retries: { inc(labels: object): void }
declare const alice: import('pg').PoolClient
declare const bob: import('pg').PoolClient
declare function assert(truth: boolean): asserts truth
declare function buy(db: import('pg').Pool, sku: string): Promise<void>
declare function work(tx: import('dibs').Transaction): Promise<void>
declare function isDone(id: string): Promise<boolean>
declare function tryAgainLater(code: string): void
`

const handles = {
  fromKysely: "declare const db: import('kysely').Kysely<Any>",
  fromDrizzle: "declare const db: import('drizzle-orm/node-postgres').NodePgDatabase",
  fromPrisma: `type PrismaTx = import('dibs').PrismaTransaction & { order: Any }
declare const prisma: { $transaction(fn: (tx: PrismaTx) => Promise<void>, options: object): Promise<void> }`,
  fromKnex: "declare const knex: import('knex').Knex",
  fromTypeORM: "declare const dataSource: import('typeorm').DataSource",
  fromPostgresJs: "declare const sql: import('postgres').Sql",
}

/** @returns {{ where: string, code: string }[]} */
function examplesIn(file) {
  const text = readFileSync(join(root, file), 'utf8')
  if (file.endsWith('.md')) {
    return [...text.matchAll(/^```ts\n([\s\S]*?)^```/gm)].map(([, code], n) => ({
      where: `${file} ${n + 1}`,
      code,
    }))
  }
  return [...text.matchAll(/^ *\/\*\*\n(?:(?! *\*\/)[\s\S])*?^ *\* @example\n([\s\S]*?)^ *\*\//gm)].map(
    ([, code], n) => ({
      where: `${file} ${n + 1}`,
      code: code.replace(/^ *\* ?/gm, ''),
    }),
  )
}

function toModule({ code }) {
  const imports = code.match(/^import .*$/gm) ?? []
  const named = new Set(imports.flatMap((line) => line.match(/\w+/g) ?? []))
  const offered = (module, from, types = []) => {
    const all = [...Object.keys(module), ...types.map((name) => `type ${name}`)]
    const names = all.filter((name) => !named.has(name.replace('type ', '')))
    for (const name of names) named.add(name) // more than one module may export it
    return `import { ${names.join(', ')} } from '${from}'`
  }
  return `${offered(face, 'dibs', ['Transaction'])}
${offered(testing, 'dibs/testing')}
${offered(http, 'dibs/http')}
${offered({ Idempotent: 0, IdempotencyInterceptor: 0, IdempotencyModule: 0, RateLimited: 0, Tx: 0, LeasedClaim: 0 }, 'dibs/nest')}
${imports.join('\n')}
${Object.keys(handles)
  .filter((name) => code.includes(`${name}(`))
  .map((name) => handles[name])
  .join('\n')}
export async function example() {
${code.replace(/^import .*$/gm, '').replace(/^export /gm, '')}
}
`
}

const files = [
  'README.md',
  ...readdirSync(join(root, 'docs'))
    .filter((name) => name.endsWith('.md'))
    // Parts of files that are compiled as they are; the files of the tutorial by scripts/newcomer.process.test.ts.
    .filter((name) => !['races.md', 'crashes.md', 'getting-started.md'].includes(name))
    .map((name) => `docs/${name}`),
  ...readdirSync(join(root, 'src'), { recursive: true })
    .filter((name) => /\.ts$/.test(name) && !/\.(test|soak|test-d)\.ts$/.test(name))
    .map((name) => `src/${name}`),
]
const examples = files.flatMap(examplesIn)
rmSync(out, { recursive: true, force: true })
mkdirSync(out, { recursive: true })
writeFileSync(join(out, 'ambient.d.ts'), ambient)
for (const example of examples) {
  writeFileSync(join(out, `${example.where.replace(/[^\w]+/g, '_')}.ts`), toModule(example))
}
writeFileSync(
  join(out, 'tsconfig.json'),
  JSON.stringify({
    extends: '../../tsconfig.json',
    compilerOptions: { exactOptionalPropertyTypes: true },
    include: ['*.ts'],
    exclude: [],
  }),
)
const { status, stdout } = spawnSync('npx', ['--no-install', 'tsc', '--noEmit', '-p', out], {
  cwd: root,
  encoding: 'utf8',
})
if (examples.length === 0 || status !== 0) {
  console.error(stdout || 'no examples were found')
  process.exitCode = 1
} else {
  console.log(`${examples.length} examples compile`)
}
