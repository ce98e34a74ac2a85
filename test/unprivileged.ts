import { execFileSync } from 'node:child_process'

/** PostgreSQL and PgBouncer refuse to run as root: whom to run them as then. */
export function unprivileged(): { uid: number; gid: number } | undefined {
  if (process.getuid?.() !== 0) return undefined
  for (const name of ['postgres', 'nobody']) {
    try {
      const id = (flag: string) =>
        Number(execFileSync('id', [flag, name], { stdio: ['ignore', 'pipe', 'ignore'] }))
      return { uid: id('-u'), gid: id('-g') }
    } catch {}
  }
  throw new Error('Running as root, and neither user "postgres" nor "nobody" exists to run PostgreSQL as.')
}
