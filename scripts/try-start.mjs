// Runs the start command of the README in this folder, waits until the server answers,
// presses Ctrl-C, and sees that it ended well and left nothing running.
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

const root = join(import.meta.dirname, '..')
const [command] = readFileSync(join(root, 'README.md'), 'utf8').match(/^npm install && npm start$/m) ?? []
if (!command) throw new Error('README.md does not name the start command')

const { DATABASE_URL: _, NODE_ENV: __, ...env } = process.env
const startedAt = performance.now()
const [install, start] = command.split(' && ').map((part) => part.split(' '))
execFileSync(install[0], install.slice(1), { cwd: root, stdio: 'inherit' })
// Not by a shell, which would end by Ctrl-C as well and not tell how the command ended.
const child = spawn(start[0], start.slice(1), {
  cwd: root,
  env: { ...env, PORT: '0' },
  stdio: ['ignore', 'pipe', 'inherit'],
  detached: true, // a group of its own, which gets Ctrl-C as a terminal's does
})
const ended = once(child, 'exit')
let output = ''
let hasStopped = false
child.stdout.setEncoding('utf8').on('data', (chunk) => {
  process.stdout.write(chunk)
  output += chunk
})

try {
  const [, url] = await until(() => output.match(/^Ready on (http\S+)$/m), 'the server to be ready', 120_000)
  const health = await fetch(`${url}/healthz`)
  console.log(`${health.status} ${await health.text()}`)
  if (health.status !== 200) throw new Error('unhealthy')
  process.kill(-child.pid, 'SIGINT')
  hasStopped = true
  const [code, signal] = await ended
  if (code !== 0) throw new Error(`it ended with ${code ?? signal}`)
  await until(() => left().length === 0 || undefined, 'supervisor and server to end', 10_000)
  console.log(
    `started, asked and stopped in ${Math.round(performance.now() - startedAt)} ms; nothing is left running`,
  )
} catch (error) {
  console.error(error)
  console.error(left().join('\n'))
  if (child.exitCode === null && child.signalCode === null) process.kill(-child.pid, 'SIGKILL')
  process.exitCode = 1
}

function left() {
  const note = join(root, '.dibs/WHERE-THE-DATA-IS.txt') // as root, in a folder that others cannot enter
  const elsewhere = existsSync(note) ? [readFileSync(note, 'utf8').split('\n')[1]] : []
  const places = [join(root, '.dibs'), ...elsewhere]
  const list = execFileSync('ps', ['-ww', '-eo', 'pid=,args='], { encoding: 'utf8' })
  return list.split('\n').filter((line) => places.some((place) => line.includes(place)))
}

async function until(probe, what, withinMs) {
  const deadline = performance.now() + withinMs
  for (;;) {
    const found = probe()
    if (found) return found
    const isOver = child.exitCode !== null || child.signalCode !== null
    if (isOver && !hasStopped)
      throw new Error(`it ended with ${child.exitCode ?? child.signalCode} before ${what}`)
    if (performance.now() > deadline) throw new Error(`waited in vain for ${what}`)
    await sleep(50)
  }
}
