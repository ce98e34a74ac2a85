import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { count, kill, newFolder, Opener, one, untilStopped, write } from '../../../test/embedded.js'
import { processesOf, serversOf, supervisorsOf } from '../../../test/processes.js'
import { until } from '../../../test/until.js'

// Real processes, real kills, on durable settings: what was committed must be there afterwards.
describe('kill -9', () => {
  it('of one process: the others go on', async () => {
    const dir = newFolder()
    const [victim, survivor] = [await Opener.open({ dir }), await Opener.open({ dir })]
    const server = one(serversOf(dir))
    await write(victim)
    await victim.kill()
    await write(survivor)
    expect(await count(survivor)).toBe(2)
    expect(one(serversOf(dir))).toBe(server)
    await survivor.close()
    await untilStopped(dir)
  })

  it('of all processes: the server is shut down, and the next finds their data', async () => {
    const dir = newFolder()
    const openers = await Promise.all([1, 2, 3].map(() => Opener.open({ dir })))
    await write(openers[0] as Opener)
    await Promise.all(openers.map((opener) => opener.kill()))
    await untilStopped(dir)
    expect(readFileSync(join(dir, 'postgres.log'), 'utf8')).toContain('database system is shut down')
    expect(await count(await Opener.open({ dir }))).toBe(1)
  })

  it('of the supervisor: a successor adopts the server, and waits for all who lost the first before it counts', async () => {
    const dir = newFolder()
    const [awake, asleep] = [await Opener.open({ dir }), await Opener.open({ dir })]
    const server = one(serversOf(dir))
    const supervisor = one(supervisorsOf(dir))
    process.kill(asleep.pid, 'SIGSTOP') // it cannot come back yet
    kill([supervisor])
    await until(() => supervisorsOf(dir).some((pid) => pid !== supervisor), 'a successor')
    await write(awake)
    await (await Opener.open({ dir })).close() // newcomers find the successor
    await awake.close()
    const closedAt = Date.now()
    // Longer than a supervisor waits after the last, shorter than a successor does.
    await until(() => Date.now() - closedAt > 4_000, 'four seconds')
    process.kill(asleep.pid, 'SIGCONT')
    expect(await count(asleep)).toBe(1)
    expect(one(serversOf(dir))).toBe(server)
    await asleep.close()
    await until(() => serversOf(dir).length === 0, 'the server to end', 15_000)
    await untilStopped(dir)
  })

  it('of the server: its supervisor starts it again on the same port, and processes go on', async () => {
    const dir = newFolder()
    const opener = await Opener.open({ dir })
    await write(opener)
    const server = one(serversOf(dir))
    kill([server])
    await until(() => serversOf(dir).some((pid) => pid !== server), 'another server') // the old backends may answer on
    expect(await opener.queryUntilAnswered('select count(*) as n from kept')).toEqual([{ n: '1' }])
    one(serversOf(dir))
    await opener.close()
    await untilStopped(dir)
  })

  it('of supervisor, server and a process: the one that is left brings both back as they were', async () => {
    const dir = newFolder()
    const first = await Opener.open({ dir, settings: { work_mem: '7MB' } })
    const left = await Opener.open({ dir })
    await write(left)
    kill([...supervisorsOf(dir), ...serversOf(dir)])
    await first.kill()
    expect(await left.queryUntilAnswered('select count(*) as n from kept')).toEqual([{ n: '1' }])
    await until(() => serversOf(dir).length === 1, 'a server')
    expect(await left.queryUntilAnswered('show work_mem')).toEqual([{ work_mem: '7MB' }])
    await until(() => supervisorsOf(dir).length === 1, 'one supervisor')
  })

  it('of everything: the next open recovers', async () => {
    const dir = newFolder()
    const opener = await Opener.open({ dir })
    await write(opener)
    await opener.kill()
    kill([...supervisorsOf(dir), ...serversOf(dir)])
    await untilStopped(dir)
    expect(existsSync(join(dir, 'data', 'postmaster.pid'))).toBe(true)
    expect(await count(await Opener.open({ dir }))).toBe(1)
    expect(readFileSync(join(dir, 'postgres.log'), 'utf8')).toContain('was not properly shut down')
  })

  it('of all but the server: the next open adopts it and ends it', async () => {
    const dir = newFolder()
    const opener = await Opener.open({ dir })
    await write(opener)
    const server = one(serversOf(dir))
    process.kill(opener.pid, 'SIGSTOP') // or it would start another supervisor
    kill(supervisorsOf(dir))
    await opener.kill()
    await until(() => supervisorsOf(dir).length === 0, 'the supervisors to end')
    const next = await Opener.open({ dir })
    expect(one(serversOf(dir))).toBe(server)
    expect(await count(next)).toBe(1)
    await next.close()
    await until(() => serversOf(dir).length === 0, 'the server to end', 15_000)
  })

  it('of the supervisor while it makes the data folder: the next open makes it whole', async () => {
    const dir = newFolder()
    const first = Opener.spawn({ dir })
    await until(() => processesOf(dir).some(({ command }) => command.includes('initdb')), 'initdb to run')
    await first.kill()
    kill(supervisorsOf(dir))
    expect(existsSync(join(dir, 'data'))).toBe(false)
    const next = await Opener.open({ dir })
    await write(next)
    await next.close()
    await untilStopped(dir)
    await until(
      () => !processesOf(dir).some(({ command }) => command.includes('initdb')),
      'the orphan to end',
    )
    await Opener.open({ dir })
    expect(readdirSync(dir).filter((name) => name.startsWith('data.new'))).toEqual([])
  })
})
