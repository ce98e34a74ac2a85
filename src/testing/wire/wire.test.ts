import { connect } from 'node:net'
import pg from 'pg'
import { describe, expect, it } from 'vitest'
import { directUrl, viaPgBouncer } from '../../../test/database.js'
import { realTime } from '../../../test/real-time.js'
import { codeOf, query, readBind, startupWith, terminate } from './frontend.js'
import { MessageReader } from './message-reader.js'
import type { Request } from './request.js'
import { WireConnection } from './wire-connection.js'

const text = (value: string): Buffer => Buffer.from(`${value}\0`)
const int16 = (...values: number[]): Buffer => Buffer.from(values.flatMap((n) => [n >> 8, n & 0xff]))
const int32 = (value: number): Buffer => Buffer.from([value >> 24, value >> 16, value >> 8, value])
const message = (type: string, ...parts: Buffer[]): Buffer => {
  const body = Buffer.concat(parts)
  return Buffer.concat([Buffer.from(type), int32(body.length + 4), body])
}
const startup = (parameters: Record<string, string>): Buffer => {
  const body = Buffer.concat([
    int32(196608),
    ...Object.entries(parameters).flatMap(([name, value]) => [text(name), text(value)]),
    Buffer.from([0]),
  ])
  return Buffer.concat([int32(body.length + 4), body])
}

describe('MessageReader', () => {
  const messages = [query('select 1'), message('S'), query('x'.repeat(7_000)), terminate()]
  const stream = Buffer.concat(messages)
  const read = (reader: MessageReader, chunks: Buffer[]): Buffer[] =>
    chunks.flatMap((chunk) => [...reader.read(chunk)].map(({ bytes }) => bytes))
  const slices = (bytes: Buffer, size: number): Buffer[] =>
    Array.from({ length: Math.ceil(bytes.length / size) }, (_, i) => bytes.subarray(i * size, (i + 1) * size))

  it.each([1, 2, 3, 4, 5, 6, 7, 1_000, 1 << 20])('finds the same messages in slices of %i bytes', (size) => {
    expect(read(new MessageReader(), slices(stream, size))).toEqual(messages)
  })

  it('knows a message without a letter, and may be told in the midst that the next has one', () => {
    const reader = new MessageReader({ isUntyped: true })
    const seen: string[] = []
    for (const chunk of slices(Buffer.concat([startup({ user: 'me' }), query('select 1')]), 3)) {
      for (const { type } of reader.read(chunk)) {
        seen.push(type)
        reader.isUntyped = false
      }
    }
    expect(seen).toEqual(['', 'Q'])
  })

  it('gives back what is no message any more, whole', () => {
    const reader = new MessageReader()
    read(reader, slices(stream.subarray(0, 5_000), 1_000))
    expect(reader.takeRest()).toEqual(stream.subarray(query('select 1').length + 5, 5_000))
    expect(read(reader, [stream])).toEqual(messages)
  })

  it('reads a large message in time that grows with its size alone', realTime, () => {
    const large = query('x'.repeat(1 << 26))
    const startedAt = performance.now()
    expect(read(new MessageReader(), slices(large, 1 << 14))).toHaveLength(1)
    // Joined at each of 4096 slices it would be 128 GB of copying.
    expect(performance.now() - startedAt).toBeLessThan(5_000)
  })

  it('refuses what is not the protocol', () => {
    expect(() => read(new MessageReader(), [Buffer.from('GET / HTTP/1.1\r\n')])).toThrow(RangeError)
    const tls = Buffer.from([0x16, 0x03, 0x01, 0x02, 0x00])
    expect(() => read(new MessageReader({ isUntyped: true }), [tls])).toThrow(RangeError)
  })
})

describe('readBind', () => {
  const value = (bytes: string | null): Buffer =>
    bytes === null ? int32(-1) : Buffer.concat([int32(Buffer.byteLength(bytes)), Buffer.from(bytes)])
  const bind = (formats: number[], values: (string | null)[]): Buffer =>
    message(
      'B',
      text('portal'),
      text('statement'),
      int16(formats.length, ...formats),
      int16(values.length),
      ...values.map(value),
      int16(0),
    )

  it('reads text, null and binary', () => {
    expect(readBind(bind([], ['é', null, '']))).toEqual({ statement: 'statement', values: ['é', null, ''] })
    expect(readBind(bind([0, 1, 1], ['a', 'bcd', null])).values).toEqual(['a', '<3 bytes>', null])
    expect(readBind(bind([1], ['a', 'bc'])).values).toEqual(['<1 bytes>', '<2 bytes>'])
  })

  it('reads as many parameters as a server takes', () => {
    const many = Array.from({ length: 65_535 }, (_, n) => `${n}`)
    expect(
      readBind(
        bind(
          many.map(() => 0),
          many,
        ),
      ).values,
    ).toEqual(many)
  })
})

describe.skipIf(viaPgBouncer)('startupWith', () => {
  /** A real session whose startup message is rewritten on its way. */
  async function show(names: string[], settings: Record<string, string>, config: pg.ClientConfig = {}) {
    const { hostname, port } = new URL(directUrl)
    const client = new pg.Client({
      connectionString: directUrl,
      ...config,
      stream: () => {
        const socket = connect(Number(port), hostname)
        // Nothing else: `pg` connects the socket by itself.
        socket.connect = () => socket
        const write = socket.write.bind(socket)
        let isFirst = true
        socket.write = (bytes: never, ...rest: never[]) => {
          const isStartup = isFirst && codeOf(bytes) === 196608
          isFirst = false
          return write(isStartup ? (startupWith(bytes, settings) as never) : bytes, ...rest)
        }
        return socket
      },
    })
    await client.connect()
    try {
      const shown: string[] = []
      for (const name of names)
        shown.push((await client.query(`select current_setting('${name}') as is`)).rows[0].is)
      return shown
    } finally {
      await client.end()
    }
  }

  it('sets what has spaces, tabs and backslashes in it', async () => {
    const values = ['a b', 'C:\\new folder\\', '\\', 'tab\there', 'line\nbreak', ' ends with ', "it's", 'é ü']
    const settings = Object.fromEntries(values.map((value, n) => [`dibs.v${n}`, value]))
    expect(await show(Object.keys(settings), settings)).toEqual(values)
  })

  it('wins over what the client asked for, and leaves the rest of it', async () => {
    const requested = { options: '-c dibs.mine=1 -c dibs.yours=2', statement_timeout: 5_000 }
    expect(
      await show(
        ['dibs.mine', 'dibs.yours', 'statement_timeout'],
        { 'dibs.yours': '3', Statement_Timeout: '7s' },
        requested,
      ),
    ).toEqual(['1', '3', '7s'])
  })
})

describe('Wire', () => {
  function open() {
    const toServer: Buffer[] = []
    const requests: Request[] = []
    const ports = { toServer: (bytes: Buffer) => void toServer.push(bytes), toClient() {} }
    const owner = {
      onOpen() {},
      onTerminate() {},
      onRequest: (request: Request) => void requests.push(request),
    }
    const wire = new WireConnection(ports, owner)
    wire.fromClient(startup({ user: 'me' }))
    wire.fromServer(Buffer.from('Z\0\0\0\x05I'))
    toServer.length = 0
    return { wire, toServer, requests }
  }
  const parse = message('P', text(''), text('copy t from stdin'), int16(0))
  const sync = message('S')
  const data = message('d', Buffer.from('1\n'))
  const done = message('c')
  const ignored = { onMessage() {}, onReady() {} }

  it('keeps the data of a COPY behind its request, when the client does not wait to be asked', () => {
    const { wire, toServer, requests } = open()
    wire.fromClient(Buffer.concat([query('copy t from stdin'), data, done, query('select 1')]))
    expect(toServer).toEqual([])
    wire.sendRequest(ignored)
    expect(Buffer.concat(toServer)).toEqual(Buffer.concat([query('copy t from stdin'), data, done]))
    wire.finishRequest()
    expect(requests.map(({ text: sql }) => sql)).toEqual(['copy t from stdin', 'select 1'])
  })

  it('takes both Syncs of a COPY for one request, also when it fails between them', () => {
    const { wire, requests } = open()
    const ready: string[] = []
    const handlerOf = (name: string) => ({ onMessage() {}, onReady: () => void ready.push(name) })
    wire.fromClient(Buffer.concat([parse, sync]))
    wire.sendRequest(handlerOf('copy'))
    wire.finishRequest()
    wire.fromServer(message('G', Buffer.from([0]), int16(0)))
    wire.fromServer(message('E', text('C22P02'), Buffer.from([0])))
    wire.fromClient(Buffer.concat([data, done, sync]))
    wire.fromClient(query('select 1'))
    expect(requests.map(({ text: sql }) => sql)).toEqual(['copy t from stdin', 'select 1'])
    wire.fromServer(Buffer.from('Z\0\0\0\x05I'))
    expect(ready).toEqual(['copy'])
  })
})
