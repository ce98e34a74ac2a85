import { pino } from 'pino'
import { type DibsEventName, type DibsEvents, type EventOrigin, onEvent } from './events.js'

/** What a logger must be able to do; a pino logger is one. */
export interface Logger {
  debug(fields: object, message: string): void
  info(fields: object, message: string): void
  warn(fields: object, message: string): void
  error(fields: object, message: string): void
}

const lines: { readonly [N in DibsEventName]: readonly [level: keyof Logger, message: string] } = {
  'dibs:transaction.retried': ['debug', 'transaction met a conflict and runs again'],
  'dibs:transaction.gave-up': ['warn', 'transaction met a conflict and gave up'],
  'dibs:commit.unknown': ['error', 'connection lost while committing: the outcome is unknown'],
  'dibs:after-commit.failed': [
    'error',
    'a function given to afterCommit failed; the transaction is committed',
  ],
  'dibs:connection.discarded': ['warn', 'broken connection thrown away'],
  'dibs:migration.applied': ['info', 'migration applied'],
  'dibs:listener.connected': ['debug', 'listening for wake-ups'],
  'dibs:listener.lost': ['warn', 'listening connection lost; polling until it is back'],
  'dibs:hint.failed': ['debug', 'wake-up hint not sent'],
}

/** pino writes a field `err` with type, message and stack; other names would lose the stack. */
function toFields({ error, ...fields }: EventOrigin & { readonly error?: unknown }): object {
  return error === undefined ? fields : { ...fields, err: error }
}

/** Writes the events of one schema to a logger, `true` for a pino of our own; returns what ends it. */
export function logEvents(logger: Logger | true, schema: string): () => void {
  const target: Logger = logger === true ? pino({ name: 'dibs' }) : logger
  const stops = (Object.keys(lines) as DibsEventName[]).map((name) => {
    const [level, message] = lines[name]
    return onEvent(name, (payload: DibsEvents[DibsEventName]) => {
      if (payload.schema === schema) target[level]({ event: name, ...toFields(payload) }, message)
    })
  })
  return () => {
    for (const stop of stops) stop()
  }
}
