/** Reads and writes the client messages that the gate and the proxy need. */

export const SSL_REQUEST = 80877103
export const GSS_REQUEST = 80877104
export const CANCEL_REQUEST = 80877102
/** The first byte of a client that starts TLS without an SSLRequest (`sslnegotiation=direct`). */
export const TLS_HANDSHAKE = 0x16

/** Reads the code of a message without a type letter. */
export const codeOf = (bytes: Buffer): number => bytes.readInt32BE(4)

function message(type: string, ...parts: Buffer[]): Buffer {
  const body = Buffer.concat(parts)
  const head = Buffer.alloc(5)
  head.write(type, 0, 'latin1')
  head.writeInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}

const text = (value: string): Buffer => Buffer.from(`${value}\0`)

/** A simple query. */
export const query = (sql: string): Buffer => message('Q', text(sql))

/** Sync: ends an extended query. The server responds with the status of the transaction. */
export const sync = (): Buffer => message('S')

export const terminate = (): Buffer => message('X')

function readText(bytes: Buffer, at: number): { value: string; end: number } {
  const zero = bytes.indexOf(0, at)
  return { value: bytes.toString('utf8', at, zero), end: zero + 1 }
}

/** The SQL of a simple query. */
export const readQuery = (bytes: Buffer): string => readText(bytes, 5).value

/** Reads the name of a prepared statement (empty: unnamed) and its SQL from a Parse message. */
export function readParse(bytes: Buffer): { name: string; sql: string } {
  const name = readText(bytes, 5)
  return { name: name.value, sql: readText(bytes, name.end).value }
}

/** Reads the name of the statement and the parameters from a Bind message. Of a binary parameter, only the size. */
export function readBind(bytes: Buffer): { statement: string; values: (string | null)[] } {
  const portal = readText(bytes, 5)
  const statement = readText(bytes, portal.end)
  let at = statement.end
  const formats = Array.from({ length: bytes.readUInt16BE(at) }, (_, i) => bytes.readInt16BE(at + 2 + i * 2))
  at += 2 + formats.length * 2
  const values: (string | null)[] = []
  const count = bytes.readUInt16BE(at)
  at += 2
  for (let i = 0; i < count; i++) {
    const length = bytes.readInt32BE(at)
    at += 4
    const isBinary = (formats.length === 1 ? formats[0] : formats[i]) === 1
    if (length < 0) values.push(null)
    else if (isBinary) values.push(`<${length} bytes>`)
    else values.push(bytes.toString('utf8', at, at + length))
    at += Math.max(length, 0)
  }
  return { statement: statement.value, values }
}

/** Returns the startup message with `settings` as defaults of the session. They win over the client's own settings. */
export function startupWith(bytes: Buffer, settings: Readonly<Record<string, string>>): Buffer {
  const parameters = new Map<string, string>()
  const names = Object.keys(settings).map((name) => name.toLowerCase())
  const isOurs = (name: string): boolean => names.includes(name.toLowerCase())
  for (let at = 8; bytes[at] !== 0 && at < bytes.length; ) {
    const name = readText(bytes, at)
    const value = readText(bytes, name.end)
    // A parameter outside `options` would win over `options`.
    if (!isOurs(name.value)) parameters.set(name.value, value.value)
    at = value.end
  }
  const flags = Object.entries(settings).map(
    ([name, value]) => `-c ${name}=${value.replace(/[\\ \t\n\v\f\r]/g, '\\$&')}`,
  )
  // The last flag of a name wins, so the client's flags come first.
  parameters.set('options', [parameters.get('options'), ...flags].filter(Boolean).join(' '))
  const body = Buffer.concat([
    bytes.subarray(4, 8),
    ...[...parameters].flatMap(([name, value]) => [text(name), text(value)]),
    Buffer.from([0]),
  ])
  const length = Buffer.alloc(4)
  length.writeInt32BE(body.length + 4)
  return Buffer.concat([length, body])
}
