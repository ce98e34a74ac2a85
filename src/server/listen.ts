import { once } from 'node:events'
import type { AddressInfo, Server } from 'node:net'
import { InvalidInputError } from '../errors.js'

/** The address of a server. */
export interface Address {
  readonly host: string
  /** 0: a free port. */
  readonly port: number
}

/** Resolves with the port when the server listens. The error says which part of the address to change. */
export async function listen(server: Server, { host, port }: Address): Promise<number> {
  if (host === '') throw new InvalidInputError('host', 'must be a name or an address, such as 127.0.0.1')
  try {
    server.listen({ host, port })
    await once(server, 'listening')
  } catch (error) {
    throw explain(error, { host, port })
  }
  const bound: string | AddressInfo | null = server.address()
  return bound !== null && typeof bound === 'object' ? bound.port : port
}

function explain(error: unknown, { host, port }: Address): unknown {
  const code = error instanceof Error && 'code' in error ? error.code : undefined
  const refuse = (field: keyof Address, problem: string): InvalidInputError =>
    new InvalidInputError(field, problem, { cause: error })
  switch (code) {
    case 'EADDRINUSE':
      return refuse(
        'port',
        `${port} on ${host} is taken by another program. Stop that one, or choose another port; 0 picks a free one`,
      )
    case 'EACCES':
      return refuse(
        'port',
        `${port} on ${host} may not be used by this user. Choose one from 1024 up, or 0 for a free one`,
      )
    case 'EADDRNOTAVAIL':
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
    case 'EAFNOSUPPORT':
    case 'EINVAL':
      return refuse(
        'host',
        `must be an address of this machine, not ${JSON.stringify(host)} (${code}). 127.0.0.1 is reached from here alone, 0.0.0.0 from everywhere`,
      )
    default:
      return error
  }
}
