// Makes the Prisma client of the tests, without the network, unless it is up to date.
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const schema = join(root, 'test/prisma/schema.prisma')
const output = join(root, 'test/prisma/generated')
const stamp = join(output, 'stamp')

const packagePath = createRequire(import.meta.url).resolve('prisma/package.json')
const { version, bin } = JSON.parse(readFileSync(packagePath, 'utf8'))
const wanted = createHash('sha256').update(version).update('\n').update(readFileSync(schema)).digest('hex')

if (!existsSync(stamp) || readFileSync(stamp, 'utf8') !== wanted) {
  rmSync(output, { recursive: true, force: true })
  execFileSync(
    process.execPath,
    [join(dirname(packagePath), bin.prisma), 'generate', '--schema', schema, '--no-hints'],
    {
      cwd: root,
      stdio: ['ignore', 'ignore', 'pipe'],
      env: {
        ...process.env,
        CHECKPOINT_DISABLE: '1',
        PRISMA_HIDE_UPDATE_MESSAGE: '1',
        // Prisma downloads this engine, which only migrations need, unless it is told of a file that exists.
        PRISMA_SCHEMA_ENGINE_BINARY: process.execPath,
      },
    },
  )
  // Last, so that a run that was cut short is done again.
  writeFileSync(stamp, wanted)
}
