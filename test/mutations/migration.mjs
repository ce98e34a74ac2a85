/** @type {import('../../scripts/mutate/read-mutations.mjs').Mutation[]} */
export default [
  {
    guard: 'migration.lock',
    to: 'return true',
    what: 'Two processes migrate at once.',
    tests: ['migrations/migrate'],
  },
  {
    guard: 'migration.recheck',
    from: /checkApplied\(.*\)/,
    to: 'known',
    what: 'A migration that another process applied runs again.',
    tests: ['migrations/migrate'],
  },
  {
    guard: 'migration.own-transaction',
    if: false,
    what: 'A file that ends its transaction is recorded.',
    tests: ['migrations/migrate'],
  },
  {
    guard: 'migration.invalid-index',
    if: false,
    what: 'An invalid index counts as built.',
    tests: ['migrations/migrate'],
  },
  {
    guard: 'migration.valid-after',
    to: 'return true',
    what: 'A failed concurrent build is recorded.',
    tests: ['migrations/migrate'],
  },
  {
    guard: 'migration.compatible',
    if: false,
    what: 'A release that is too old for the schema goes on.',
    tests: ['check-applied.unit'],
  },
  {
    guard: 'migration.points',
    what: "Yield points reach a schema that is not a test's.",
    tests: ['yield-points'],
  },
]
