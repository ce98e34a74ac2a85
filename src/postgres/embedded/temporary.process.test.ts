import { existsSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { kill, newFolder, Opener, one, untilStopped } from '../../../test/embedded.js'
import { serversOf, supervisorsOf } from '../../../test/processes.js'
import { until } from '../../../test/until.js'
import { fastSettings } from './settings.js'

describe('a temporary server', () => {
  const folderOf = async (by: Opener): Promise<string> => {
    const [row] = await by.query("select current_setting('data_directory') as data")
    return dirname(String(row?.data))
  }

  it('is gone with its folder when close() returns', async () => {
    const opener = await Opener.open({ temporary: true, settings: fastSettings })
    const folder = await folderOf(opener)
    expect(await opener.query('show fsync')).toEqual([{ fsync: 'off' }])
    await opener.close()
    expect(existsSync(folder)).toBe(false)
    expect(serversOf(folder)).toEqual([])
    await untilStopped(folder)
  })

  it('is gone also when its process was killed', async () => {
    const opener = await Opener.open({ temporary: true })
    const folder = await folderOf(opener)
    await opener.kill()
    await untilStopped(folder)
    await until(() => !existsSync(folder), 'the folder to be gone')
  })

  it('whose process and supervisor were both killed is ended by the next', async () => {
    const spawning = { env: { TMPDIR: newFolder() } }
    const abandoned = await Opener.open({ temporary: true }, spawning)
    const folder = await folderOf(abandoned)
    process.kill(abandoned.pid, 'SIGSTOP') // or it would start another supervisor
    kill(supervisorsOf(folder))
    await abandoned.kill()
    one(serversOf(folder))
    const next = await Opener.open({ temporary: true }, spawning)
    await until(() => serversOf(folder).length === 0 && !existsSync(folder), 'the next to sweep', 40_000)
    expect(serversOf(await folderOf(next))).toHaveLength(1)
  })

  it('that was killed while it started is ended by the next ones, however short they live', async () => {
    const place = newFolder()
    const spawning = { env: { TMPDIR: place } }
    const early = Opener.spawn({ temporary: true }, spawning)
    await until(() => serversOf(place).length > 0, 'the server to start')
    process.kill(early.pid, 'SIGSTOP')
    kill(supervisorsOf(place))
    await early.kill()
    const [folder] = readdirSync(place).filter((name) => name.startsWith('dibs-temporary-'))
    await until(
      async () => {
        await (await Opener.open({ temporary: true }, spawning)).close()
        return !existsSync(join(place, `${folder}`)) && serversOf(place).length === 0
      },
      'them to sweep',
      40_000,
    )
    expect(readdirSync(place).filter((name) => name.startsWith('dibs-temporary-'))).toEqual([])
  })
})
