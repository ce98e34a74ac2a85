/** @type {import('../../scripts/mutate/read-mutations.mjs').Mutation[]} */
export default [
  {
    guard: 'aggregate.recompute-bound',
    what: 'A recomputation waits without a limit.',
    tests: ['aggregate'],
  },
  {
    guard: 'aggregate.recompute-lock-first',
    to: "v_place := '';",
    what: 'Children are counted before the parent is locked.',
    tests: ['aggregate.explore'],
  },
  {
    guard: 'aggregate.recompute-order',
    from: /order by \$\{[\w.]+\} /,
    to: '',
    what: 'Parents are locked in different orders and deadlock.',
    tests: ['aggregate'],
  },
  {
    guard: 'aggregate.refresh-skip-locked',
    from: ' skip locked',
    to: '',
    what: 'A refresh waits for marks that another one removes.',
    tests: ['aggregate'],
  },
  {
    guard: 'aggregate.refresh-open-mark',
    from: ' having pg_catalog.bool_and(pg_catalog.age(m.xmin) operator(pg_catalog.>) pg_catalog.age(v_oldest))',
    to: '',
    what: 'The mark of an unfinished transaction is removed.',
    tests: ['aggregate'],
  },
  {
    guard: 'aggregate.put-back',
    if: false,
    what: 'A failed refresh leaves no mark.',
    tests: ['aggregate'],
  },
  {
    guard: 'aggregate.view-lock',
    what: 'Two processes create one view at once.',
    tests: ['aggregate-views'],
  },
  {
    guard: 'aggregate.isolate',
    from: /return .*/,
    to: 'throw error',
    what: 'One failing parent holds up all others.',
    tests: ['aggregate'],
  },
  {
    guard: 'aggregate.verify-lock-free',
    from: /\w+\.lockAvailable/,
    to: 'sql.lock',
    what: 'Verification waits for locks.',
    tests: ['aggregate-verify'],
  },
  {
    guard: 'aggregate.verify-end',
    if: false,
    what: 'Verification never ends.',
    tests: ['aggregate-verify'],
  },
]
