import type { ClientBase } from 'pg'
import { POINT_CODE } from '../../gate/gated-session.js'

/** Advisory locks of two keys: one of these, and the backend that must stop there. */
const ENTRANCE = 0x44_69_62_31
const EXIT = 0x44_69_62_32

/**
 * A yield point in a function is a lock that the explorer holds. A turnstile of two, so that whoever is let through one
 * point cannot run through the next before the explorer has closed it again. Nobody explores: nothing happens.
 */
const body = `
begin
  if pg_try_advisory_lock_shared(${ENTRANCE}, pg_backend_pid()) then
    perform pg_advisory_unlock_shared(${ENTRANCE}, pg_backend_pid());
    return;
  end if;
  raise info using errcode = '${POINT_CODE}', message = $1;
  perform pg_advisory_lock_shared(${ENTRANCE}, pg_backend_pid());
  perform pg_advisory_unlock_shared(${ENTRANCE}, pg_backend_pid());
  perform pg_advisory_lock_shared(${EXIT}, pg_backend_pid());
  perform pg_advisory_unlock_shared(${EXIT}, pg_backend_pid());
end`

/** Yield points inside functions: `perform dibs_point('name')`. */
export class Points {
  readonly #control: ClientBase
  readonly #isUsed: boolean

  private constructor(control: ClientBase, isUsed: boolean) {
    this.#control = control
    this.#isUsed = isUsed
  }

  /** Makes `dibs_point` do its work wherever it is declared; declares it where a function calls it and nobody did. */
  static async open(control: ClientBase): Promise<Points> {
    // A cast to regnamespace would give a number for a schema that is dropped just now.
    const { rows: callers } = await control.query<{ schema: string }>(`
      select distinct quote_ident(n.nspname) as schema
      from pg_proc join pg_namespace n on n.oid = pronamespace
      where prosrc like '%dibs_point(%' and proname <> 'dibs_point' and n.nspname <> 'pg_catalog'`)
    if (callers.length === 0) return new Points(control, false)
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
    return new Points(control, true)
  }

  /** From now on the backend stops at points. */
  async hold(pid: number): Promise<void> {
    if (this.#isUsed) await this.#control.query(`select pg_advisory_lock(${ENTRANCE}, ${pid})`)
  }

  /** Lets a backend that waits at a point go on to the next. */
  async release(pid: number): Promise<void> {
    await this.#control.query(
      `select pg_advisory_lock(${EXIT}, ${pid}), pg_advisory_unlock(${ENTRANCE}, ${pid}),
              pg_advisory_lock(${ENTRANCE}, ${pid}), pg_advisory_unlock(${EXIT}, ${pid})`,
    )
  }
}

/** One at a time, whoever else is about to do the same. The names come from the catalog, quoted. */
async function declare(control: ClientBase, schema: string, parameters: string): Promise<void> {
  try {
    await control.query(`
      select pg_advisory_xact_lock(${ENTRANCE}, 0);
      create or replace function ${schema}.dibs_point(${parameters}) returns void
        language plpgsql set lock_timeout = 0 as $dibs$${body}$dibs$`)
  } catch (error) {
    if (!NOT_OURS.has((error as { code?: string }).code ?? '')) throw error
  }
}

/** Somebody else's schema: it was dropped meanwhile, or is not ours to change. */
const NOT_OURS: ReadonlySet<string> = new Set(['3F000', '42501', 'XX000'])
