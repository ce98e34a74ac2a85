import type { Logger } from './logger.js'
import { stackOf } from './stored-failure.js'

/** The logger writes at most this many lines per event, level and subject in this time, and counts the others. */
const MAX_LINES = 10
const WINDOW_MS = 10_000

const MAX_VALUE_CHARS = 300
const MAX_MESSAGE_CHARS = 500

/** Errors of the user's code that have no other report. Their stack follows the line. */
const WITH_STACK: readonly unknown[] = [
  'dibs:job.failed',
  'dibs:after-commit.failed',
  'dibs:monitor.row-failed',
]

type Fields = Readonly<Record<string, unknown>>

interface Window {
  lines: number
  suppressed: number
  readonly timer: NodeJS.Timeout
}

/**
 * The logger of an instance without a `logger`. Writes warnings and errors to stderr, one line each: time, level, message, and
 * fields as `key=value`. Lines beyond `MAX_LINES` are counted, and the count is written in one line.
 */
export class StderrLogger implements Logger {
  readonly #windows = new Map<string, Window>()
  readonly #write: (text: string) => void

  constructor(write: (text: string) => void = writeToStderr) {
    this.#write = write
  }

  debug(): void {}

  info(): void {}

  warn(fields: Fields, message: string): void {
    this.#log('WARN', fields, message)
  }

  error(fields: Fields, message: string): void {
    this.#log('ERROR', fields, message)
  }

  /** Writes how many lines were suppressed so far. */
  close(): void {
    for (const key of [...this.#windows.keys()]) this.#endWindow(key)
  }

  #log(level: 'WARN' | 'ERROR', fields: Fields, message: string): void {
    const { event, subject, err, instance: _, ...rest } = fields
    const key = [level, event, subject].filter((part) => part !== undefined).join(' ')
    if (!this.#mayWrite(key)) return
    const shown = { event, subject, ...rest }
    const pairs = Object.entries(shown).flatMap(([name, value]) =>
      value === undefined ? [] : [`${name}=${show(value)}`],
    )
    if (err !== undefined) pairs.push(`err=${JSON.stringify(describeError(err))}`)
    const hasStack = level === 'ERROR' && WITH_STACK.includes(event)
    const stack = hasStack ? stackOf(err) : undefined
    this.#writeLine(level, `${message.slice(0, MAX_MESSAGE_CHARS)} ${pairs.join(' ')}`, stack)
  }

  /**
   * Escapes control characters. Names, messages and stacks may hold input of users, who must not be able to forge a
   * line or control a terminal.
   */
  #writeLine(level: string, text: string, stack = ''): void {
    const following = stack === '' ? [] : stack.split('\n').map((line) => `    ${line}`)
    const lines = [`${new Date().toISOString()} ${level} dibs: ${text}`, ...following]
    this.#write(lines.map(escapeControls).join('\n'))
  }

  #mayWrite(key: string): boolean {
    let window = this.#windows.get(key)
    if (!window) {
      const timer = setTimeout(() => this.#endWindow(key), WINDOW_MS).unref()
      window = { lines: 0, suppressed: 0, timer }
      this.#windows.set(key, window)
    }
    if (window.lines < MAX_LINES) {
      window.lines++
      return true
    }
    window.suppressed++
    return false
  }

  #endWindow(key: string): void {
    const window = this.#windows.get(key)
    if (!window) return
    this.#windows.delete(key)
    clearTimeout(window.timer)
    if (window.suppressed === 0) return
    const [level = '', ...about] = key.split(' ')
    this.#writeLine(level, `suppressed ${window.suppressed} more lines about ${about.join(' ')}`)
  }
}

let isGuarded = false

function writeToStderr(text: string): void {
  // Without a listener, a stderr that is closed (EPIPE) would end the process.
  if (!isGuarded) process.stderr.on('error', () => {})
  isGuarded = true
  try {
    console.error(text)
  } catch {
    // A program may have replaced console.error, and there is nowhere else to write to.
  }
}

/** Control characters but the tab, line separators, and marks that reorder text. */
const CONTROLS = /[^\P{Cc}\t]|[\u2028\u2029\u202a-\u202e\u2066-\u2069]/gu

const escapeControls = (text: string): string =>
  text.replace(CONTROLS, (one) =>
    one === '\n' ? '\\n' : `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`,
  )

/** Writes a value in one line, in quotes if a reader could mistake it for something else. */
function show(value: unknown): string {
  const text = typeof value === 'object' ? toJson(value) : String(value)
  const cut = text.slice(0, MAX_VALUE_CHARS)
  return /^[\w.:@/+*-]+$/.test(cut) ? cut : JSON.stringify(cut)
}

function toJson(value: unknown): string {
  try {
    return JSON.stringify(value) ?? String(value)
  } catch {
    return 'an object that cannot be shown'
  }
}

function describeError(error: unknown): string {
  try {
    return String(error).slice(0, MAX_MESSAGE_CHARS)
  } catch {
    return 'an error that cannot be shown'
  }
}
