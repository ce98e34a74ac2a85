/** Undoes what a client has left in its session. RESET ALL restores the settings of the startup message. */
const RESET_SESSION =
  'set session authorization default; reset role; reset all; select pg_advisory_unlock_all(); close all; unlisten *; discard temp; discard sequences'

/** Deallocates the statements that were prepared by SQL. A driver relies on those that it has prepared by the protocol. */
const DEALLOCATE = `do $$ declare one record; begin
  for one in select name from pg_catalog.pg_prepared_statements where from_sql loop
    execute format('deallocate %I', one.name);
  end loop; end $$`

/** Returns the SQL that brings a session back to its state after the login. */
export const resetSession = (hasPreparedBySql: boolean): string =>
  hasPreparedBySql ? `${RESET_SESSION}; ${DEALLOCATE}` : RESET_SESSION
