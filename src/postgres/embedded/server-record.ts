import { isAbsolute, join } from 'node:path'
import type { ServerSettings } from './embedded-options.js'
import { readOwnFile, replaceFile } from './own-file.js'

/** The record of a folder: how its server was started last, and by which supervisor. */
export interface ServerRecord {
  readonly port: number
  /** Undefined if unknown. */
  readonly settings?: ServerSettings | undefined
  /** The folder of its programs, if the user chose one. */
  readonly binaries?: string | undefined
  readonly supervisor: { readonly pid: number; readonly address: string }
}

const fileOf = (folder: string): string => join(folder, 'server.json')

/** Returns undefined if there is no valid record. The server then gets a new port, and the supervisor its usual address. */
export function readRecord(folder: string): ServerRecord | undefined {
  try {
    const found: unknown = JSON.parse(String(readOwnFile(fileOf(folder), folder)))
    return isRecord(found) ? found : undefined
  } catch {
    return undefined
  }
}

export function writeRecord(folder: string, record: ServerRecord): void {
  replaceFile(fileOf(folder), `${JSON.stringify(record, null, 2)}\n`, 0o600)
}

function isRecord(found: unknown): found is ServerRecord {
  if (!isObject(found) || !isObject(found.supervisor)) return false
  const { port, settings, binaries, supervisor } = found
  return (
    Number.isInteger(port) &&
    Number(port) >= 1 &&
    Number(port) <= 65_535 &&
    (settings === undefined || isObject(settings)) &&
    (binaries === undefined || typeof binaries === 'string') &&
    Number.isInteger(supervisor.pid) &&
    typeof supervisor.address === 'string' &&
    isAbsolute(supervisor.address)
  )
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
