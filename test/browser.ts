import { spawnSync } from 'node:child_process'
import { type Browser, chromium } from 'playwright-core'

const COMMANDS = ['chromium', 'chromium-browser', 'google-chrome']

/** A Chromium of this machine, by its command, and what it says of itself. */
export const installedBrowser = COMMANDS.map((command) => ({
  command,
  version: spawnSync(command, ['--version'], { encoding: 'utf8' }).stdout?.trim(),
})).find(({ version }) => version)

const pathOf = (command: string): string =>
  spawnSync('sh', ['-c', `command -v ${command}`], { encoding: 'utf8' }).stdout.trim()

export async function startBrowser(): Promise<Browser> {
  if (!installedBrowser) throw new Error('There is no browser here.')
  // Its own sandbox refuses to be run by root, as CI does; the pages are ours.
  return await chromium.launch({ executablePath: pathOf(installedBrowser.command), args: ['--no-sandbox'] })
}
