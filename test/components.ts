/**
 * Tells whether a component that some tests need is installed. Without it those tests are left out with a notice;
 * with DIBS_TEST_REQUIRE_ALL set, as in CI, its absence fails the run, unless DIBS_TEST_MAY_LACK names it: not everything
 * is published for every platform.
 */
export function requireComponent(name: string, version: string | undefined, what: string): boolean {
  if (version) return true
  const notice = `${name} is not installed: ${what} is left out.`
  const mayLack = process.env.DIBS_TEST_MAY_LACK?.split(',').includes(name)
  if (process.env.DIBS_TEST_REQUIRE_ALL && !mayLack) throw new Error(`${notice} DIBS_TEST_REQUIRE_ALL forbids that.`)
  console.warn(`\n  NOTICE  ${notice}\n`)
  return false
}
