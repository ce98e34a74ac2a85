import { Supervisor, type SupervisorConfig } from './supervisor.js'

/** The program of the supervisor. The folder is in the command line, so that lists of processes show it. */
const [, , folder = ''] = process.argv
const config: SupervisorConfig = { ...JSON.parse(process.env.DIBS_SUPERVISOR ?? '{}'), folder }

process.umask(0o022) // the user of the server must be able to enter folders that root makes; secret files set their own mode
process.chdir('/') // otherwise the working directory could not be removed
// A log that cannot be written, as on a full disk, must not end the process.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})
const supervisor = new Supervisor(config)
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => supervisor.retire())
await supervisor.run()
// A process that hangs would keep its connection open, and so keep this process alive.
setTimeout(() => process.exit(), 2_000).unref()
