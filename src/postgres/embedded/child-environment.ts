/**
 * The environment of the programs of PostgreSQL. Variables such as PGDATA or PGPORT would change what they do. Messages are in
 * English, so that `explainFailure` recognizes them.
 */
export function childEnvironment(): NodeJS.ProcessEnv {
  const { PATH, TZ, LD_LIBRARY_PATH } = process.env
  return { PATH, LC_ALL: 'C', ...(TZ ? { TZ } : {}), ...(LD_LIBRARY_PATH ? { LD_LIBRARY_PATH } : {}) }
}
