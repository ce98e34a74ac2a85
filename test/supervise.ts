import { spawn } from 'node:child_process'
import { once } from 'node:events'

export interface Supervised {
  /** The end of its standard error. */
  log(): string
  stop(): Promise<void>
}

/** Waits for the end of standard input, which also comes when this process is killed; then stops the server and cleans up. */
const script = `"$@" & pid=$!
cat > /dev/null
kill -"$STOP_SIGNAL" $pid 2> /dev/null
wait $pid
rm -rf "$DATA"`

/** Runs a server that does not outlive this process, by whatever it ends, and takes its folder with it. */
export function supervise(
  command: readonly string[],
  {
    dir,
    signal,
    user,
  }: { dir: string; signal: 'INT' | 'TERM'; user: { uid: number; gid: number } | undefined },
): Supervised {
  const child = spawn('sh', ['-c', script, 'sh', ...command], {
    ...user,
    cwd: dir,
    stdio: ['pipe', 'ignore', 'pipe'],
    env: { ...process.env, DATA: dir, STOP_SIGNAL: signal },
    // Ctrl-C goes to the whole group of the terminal: this one waits for its standard input instead.
    detached: true,
  })
  let log = ''
  child.stderr.on('data', (chunk) => {
    log = (log + chunk).slice(-10_000)
  })
  return {
    log: () => log,
    async stop() {
      const gone = once(child, 'exit')
      child.stdin.end()
      await gone
    },
  }
}
