import type { Database } from '../postgres/database.js'
import type { LockOrigin } from '../postgres/events.js'
import { hashKey, templateOf } from '../postgres/key.js'

/** What events about a lock say of it: not its name, which may hold a customer's. */
export const originOf = (database: Database, name: string): LockOrigin => ({
  ...database.origin,
  template: templateOf(name),
  keyHash: hashKey(name),
})

/** What those who wait for a lock listen to. */
export const topicOf = (name: string): string => `lock:${name}`
