import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { expect, it } from 'vitest'
// @ts-expect-error: plain JavaScript, since a process of its own runs it too
import { transfer } from '../../../test/children/transfer-code.mjs'
import { exploredSchema } from '../../../test/explored-schema.js'
import { crashLoop } from './crash-loop.js'
import type { CrashLoopOptions } from './options.js'

const { url } = exploredSchema(`
  create table clock (now int not null);
  create table job (id int primary key, fence int not null, until int not null, step int not null, status text not null);
  create table account (id int primary key, balance int not null);
  create table log (id int generated always as identity, text text)`)

const children = join(import.meta.dirname, '../../../test/children')
const child = (program: string) => (DATABASE_URL: string) =>
  spawn(process.execPath, [join(children, program)], {
    env: { ...process.env, DATABASE_URL },
    stdio: 'ignore',
  })

const options: CrashLoopOptions = {
  url,
  throws: false,
  // To start a process takes a while on a busy machine.
  patienceMs: 20_000,
  setup: (db) =>
    db.query(
      `insert into clock values (0); insert into job values (1, 0, 0, 0, 'ready'); insert into account values (1, 100), (2, 0)`,
    ),
  run: transfer,
  advance: (db) => db.query('update clock set now = now + 100'),
  progress: async (db) => (await db.query(`select from job where status = 'done'`)).rows.length === 1,
  invariant: async (db) => {
    const { rows } = await db.query('select balance from account order by id')
    expect(rows).toEqual([{ balance: 90 }, { balance: 10 }])
  },
}

it('a real process that is killed or stopped does the same as one within this process, at 30 points', {
  timeout: 300_000,
}, async () => {
  const report = await crashLoop({
    ...options,
    modes: ['crash', 'zombie', 'process'],
    child: child('transfer.mjs'),
    bound: { processPoints: 30 },
  })
  expect(report.verdict, report.printout).toBe('passed')
  const processes = report.points.filter(({ fault }) => fault?.mode === 'process')
  expect(processes).toHaveLength(30)
  expect(processes.filter(({ fault }) => fault?.signal === 'SIGKILL').length).toBeGreaterThan(10)
  expect(processes.filter(({ fault }) => fault?.signal === 'SIGSTOP').length).toBeGreaterThan(10)
  expect(processes.filter(({ agrees }) => !agrees).map(({ replay }) => replay)).toEqual([])
})

it('says where a real process does something else', { timeout: 90_000 }, async () => {
  const report = await crashLoop({
    ...options,
    modes: ['process'],
    // The process has no such statement at its end, and so none after it was stopped.
    run: async (db) => {
      await transfer(db)
      await db.query('select 1')
    },
    child: child('transfer.mjs'),
    bound: { processPoints: 5 },
  })
  const differ = report.points.filter(({ agrees }) => agrees === false).map(({ replay }) => replay)
  expect(differ.length).toBeGreaterThan(0)
  expect(differ.filter((replay) => !replay.endsWith('SIGSTOP'))).toEqual([])
  expect(report.notes).toContain(
    `A real process did not do the same as the one within this process: ${differ.join(', ')}.`,
  )
})

it('asks for a process, and for one that gets there', { timeout: 90_000 }, async () => {
  await expect(crashLoop({ ...options, modes: ['process'] })).rejects.toThrow(/^`child` must be given/)
  const replay = 'process:before-1:SIGKILL'
  await expect(crashLoop({ ...options, replay, child: () => 'none' as never })).rejects.toThrow(
    '`child` must return the process that it has started.',
  )
  await expect(crashLoop({ ...options, replay, child: child('no-such-program.mjs') })).rejects.toThrow(
    /^The child process did not come to process:before-1:SIGKILL: it sent 0 statements .* ended with code 1/,
  )
})
