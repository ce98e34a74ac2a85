import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { ServerSettings } from './embedded-options.js'

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

export function readRecord(folder: string): ServerRecord | undefined {
  try {
    return JSON.parse(readFileSync(fileOf(folder), 'utf8'))
  } catch {
    return undefined // nothing here that could not be found out again
  }
}

export function writeRecord(folder: string, record: ServerRecord): void {
  const draft = `${fileOf(folder)}.${process.pid}`
  writeFileSync(draft, `${JSON.stringify(record, null, 2)}\n`)
  renameSync(draft, fileOf(folder))
}
