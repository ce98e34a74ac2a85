import pg from 'pg'
/** This run of the suite goes through PgBouncer in transaction mode. */
export declare const viaPgBouncer: boolean
/** Straight to the server, also when the suite goes through PgBouncer. */
export declare const directUrl: string
/** The way in that this run tests. */
export declare const url: string
/** What `Dibs.open` needs to know about the way in, with `url` or with a `pool`. */
export declare const throughPool:
  | {
      prepared: boolean
      listen: boolean
    }
  | {
      prepared?: undefined
      listen?: undefined
    }
export declare const wayIn:
  | {
      prepared: boolean
      listen: boolean
      url: string
    }
  | {
      prepared?: undefined
      listen?: undefined
      url: string
    }
/** A name that no other test has. */
export declare function freshName(prefix?: string): string
/** Runs with a pool that is gone afterwards. */
export declare function withPool<T>(fn: (pool: pg.Pool) => Promise<T>, config?: pg.PoolConfig): Promise<T>
/** Makes a role that may log in, and returns the way in as that role, straight to the server. */
export declare function createRole(role: string, attributes?: string): Promise<string>
export declare function dropSchema(schema: string): Promise<void>
export { until } from './until.js'
