import { Keeper, type KeeperConfig } from './keeper.js'

/** The keeper's own process. Its folder stands in the command line for whoever looks at a list of processes. */
const [, , folder = ''] = process.argv
const config: KeeperConfig = { ...JSON.parse(process.env.DIBS_KEEPER ?? '{}'), folder }

process.umask(0o022) // the server's user must be able to enter what root makes; secrets have a mode of their own
process.chdir('/') // else the folder we were started in could not be removed
// A log that cannot be written, as on a full disk, is no reason to end.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})
const keeper = new Keeper(config)
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => keeper.retire())
await keeper.run()
// Whoever hangs would keep its connection, and us with it.
setTimeout(() => process.exit(), 2_000).unref()
