/**
 * What the programs of PostgreSQL need of our environment, and no more: variables such as PGDATA or PGPORT would
 * change what they do. English, so that failures can be told apart.
 */
export function childEnvironment(): NodeJS.ProcessEnv {
  const { PATH, TZ, LD_LIBRARY_PATH } = process.env
  return { PATH, LC_ALL: 'C', ...(TZ ? { TZ } : {}), ...(LD_LIBRARY_PATH ? { LD_LIBRARY_PATH } : {}) }
}
