import { isAbsolute, join } from 'node:path'
import type { ServerSettings } from './embedded-options.js'
import { readOwn, replaceFile } from './own-file.js'

/** What a folder remembers of its server: how it was started last, and who keeps it. */
export interface ServerRecord {
  readonly port: number
  /** Undefined if that was forgotten. */
  readonly settings?: ServerSettings | undefined
  /** The folder of its programs, if that was chosen. */
  readonly binaries?: string | undefined
  readonly keeper: { readonly pid: number; readonly address: string }
}

const fileOf = (folder: string): string => join(folder, 'server.json')

/** Undefined for whatever is no record: then a port is chosen anew, and a keeper looked for at its usual address. */
export function readRecord(folder: string): ServerRecord | undefined {
  try {
    const found: unknown = JSON.parse(String(readOwn(fileOf(folder), folder)))
    return isRecord(found) ? found : undefined
  } catch {
    return undefined
  }
}

export function writeRecord(folder: string, record: ServerRecord): void {
  replaceFile(fileOf(folder), `${JSON.stringify(record, null, 2)}\n`, 0o600)
}

function isRecord(found: unknown): found is ServerRecord {
  if (!isObject(found) || !isObject(found.keeper)) return false
  const { port, settings, binaries, keeper } = found
  return (
    Number.isInteger(port) &&
    Number(port) >= 1 &&
    Number(port) <= 65_535 &&
    (settings === undefined || isObject(settings)) &&
    (binaries === undefined || typeof binaries === 'string') &&
    Number.isInteger(keeper.pid) &&
    typeof keeper.address === 'string' &&
    isAbsolute(keeper.address)
  )
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
