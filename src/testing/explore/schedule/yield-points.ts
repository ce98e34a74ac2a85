import type { ClientBase } from 'pg'
import { POINT_CODE } from '../../gate/gated-session.js'

/** The first keys of the two advisory locks of a yield point. The second key is the process id of the backend. */
const ENTRANCE = 0x44_69_62_31
const EXIT = 0x44_69_62_32

/**
 * The body of `dibs_point`. A backend at a yield point waits for a lock that the explorer holds. Two locks are needed, like
 * the two doors of an air lock: the backend waits at EXIT until the explorer holds ENTRANCE again. So a backend that is
 * released at one point cannot run through the next. A backend that the explorer does not hold passes.
 */
const body = `
begin
  if pg_try_advisory_lock_shared(${ENTRANCE}, pg_backend_pid()) then -- guard: explorer.points-stop
    perform pg_advisory_unlock_shared(${ENTRANCE}, pg_backend_pid());
    return;
  end if;
  raise info using errcode = '${POINT_CODE}', message = $1;
  perform pg_advisory_lock_shared(${ENTRANCE}, pg_backend_pid());
  perform pg_advisory_unlock_shared(${ENTRANCE}, pg_backend_pid());
  perform pg_advisory_lock_shared(${EXIT}, pg_backend_pid());
  perform pg_advisory_unlock_shared(${EXIT}, pg_backend_pid());
end`

/** Stops backends at the yield points of functions (`perform dibs_point('name')`), and releases them one by one. */
export class YieldPoints {
  readonly #control: ClientBase
  readonly #isUsed: boolean

  private constructor(control: ClientBase, isUsed: boolean) {
    this.#control = control
    this.#isUsed = isUsed
  }

  /** Replaces the body of each `dibs_point` in the database. If there is none, declares it in the schemas of its callers. */
  static async open(control: ClientBase): Promise<YieldPoints> {
    // No cast to regnamespace: for a schema that is dropped meanwhile, it would give a number.
    const { rows: callers } = await control.query<{ schema: string }>(`
      select distinct quote_ident(n.nspname) as schema
      from pg_proc join pg_namespace n on n.oid = pronamespace
      where prosrc like '%dibs_point(%' and proname <> 'dibs_point' and n.nspname <> 'pg_catalog'`)
    if (callers.length === 0) return new YieldPoints(control, false)
    const { rows: declared } = await control.query<{
      schema: string
      parameters: string | null
      source: string
    }>(`
      select quote_ident(n.nspname) as schema, pg_get_function_arguments(p.oid) as parameters, prosrc as source
      from pg_proc p join pg_namespace n on n.oid = pronamespace
      where proname = 'dibs_point' and proargtypes = '25'::oidvector`)
    const stale =
      declared.length > 0
        ? declared.filter(({ source, parameters }) => source !== body && parameters !== null)
        : callers.map(({ schema }) => ({ schema, parameters: 'text' }))
    for (const { schema, parameters } of stale) await declare(control, schema, parameters ?? 'text')
    return new YieldPoints(control, true)
  }

  /** Makes a backend stop at yield points. */
  async hold(pid: number): Promise<void> {
    if (this.#isUsed) await this.#control.query(`select pg_advisory_lock(${ENTRANCE}, ${pid})`)
  }

  /** Releases a backend that waits at a yield point. The backend runs to the next one. */
  async release(pid: number): Promise<void> {
    await this.#control.query(
      `select pg_advisory_lock(${EXIT}, ${pid}), pg_advisory_unlock(${ENTRANCE}, ${pid}),
              pg_advisory_lock(${ENTRANCE}, ${pid}), pg_advisory_unlock(${EXIT}, ${pid})`,
    )
  }
}

/** Declares `dibs_point` under a lock, since another exploration may do the same. The catalog has quoted the names. */
async function declare(control: ClientBase, schema: string, parameters: string): Promise<void> {
  try {
    await control.query(`
      select pg_advisory_xact_lock(${ENTRANCE}, 0);
      create or replace function ${schema}.dibs_point(${parameters}) returns void
        language plpgsql set lock_timeout = 0 as $dibs$${body}$dibs$`)
  } catch (error) {
    if (!NOT_CHANGEABLE.has((error as { code?: string }).code ?? '')) throw error
  }
}

/** SQLSTATEs of a schema that was dropped meanwhile, or that the role may not change. */
const NOT_CHANGEABLE: ReadonlySet<string> = new Set(['3F000', '42501', 'XX000'])
