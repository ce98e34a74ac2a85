// Makes the package's files in dist/ from what tsc has put into build/: a bundle for each way into the package, since
// Node.js takes most of a millisecond for each file it loads, and the declarations that these ways in lead to.
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { rolldown } from 'rolldown'

const root = join(import.meta.dirname, '..')
const build = join(root, 'build')
const dist = join(root, 'dist')

/** The entry points that users import, by the name of the bundle. */
const faces = {
  index: 'index',
  testing: 'testing/index',
  http: 'http/index',
  node: 'http/adapters/node',
  express: 'http/adapters/express',
  fastify: 'http/adapters/fastify',
  hono: 'http/adapters/hono',
  nest: 'http/adapters/nest',
}
/** Programs and threads. Code looks for the last two beside itself, so all bundles are in one folder. */
const programs = {
  cli: 'cli/main',
  'supervisor-process': 'postgres/embedded/supervisor-process',
  'heartbeat-program': 'jobs/heartbeat-program',
}

rmSync(dist, { recursive: true, force: true })
await writeBundles()
writeDeclarations()
// Real CommonJS, so that `require` is what its declarations say. There is one copy of the code.
for (const name of Object.keys(faces))
  writeFileSync(join(dist, `${name}.cjs`), `'use strict'\nmodule.exports = require('./${name}.js')\n`)

async function writeBundles() {
  const input = Object.fromEntries(
    Object.entries({ ...faces, ...programs }).map(([name, file]) => [name, join(build, `${file}.js`)]),
  )
  const bundle = await rolldown({
    input,
    external: /^[^./]/,
    platform: 'node',
    tsconfig: false,
    onwarn: fail,
  })
  await bundle.write({
    dir: dist,
    format: 'es',
    entryFileNames: '[name].js',
    chunkFileNames: '[name].js',
    keepNames: true,
    comments: false,
  })
  await bundle.close()
}

function fail(warning) {
  throw new Error(`The bundles cannot be made: ${warning.message}`)
}

/** For `import` as they are, and for `require` as .d.cts, which lead to each other. */
function writeDeclarations() {
  const found = new Set()
  const pending = Object.values(faces)
  for (let file = pending.pop(); file !== undefined; file = pending.pop()) {
    if (found.has(file)) continue
    found.add(file)
    const text = readFileSync(join(build, `${file}.d.ts`), 'utf8')
    const target = join(dist, file)
    mkdirSync(dirname(target), { recursive: true })
    cpSync(join(build, `${file}.d.ts`), `${target}.d.ts`)
    const forRequire = text.replace(/(['"])(\.{1,2}\/[^'"\n]+)\.js\1/g, (_, quote, path) => {
      pending.push(join(file, '..', path))
      return `${quote}${path}.cjs${quote}`
    })
    writeFileSync(`${target}.d.cts`, forRequire)
  }
}
