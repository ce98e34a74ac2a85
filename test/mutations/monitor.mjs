/** @type {import('../../scripts/mutate/read-mutations.mjs').Mutation[]} */
export default [
  {
    guard: 'monitor.live-lease',
    from: 'operator(pg_catalog.<=) $2',
    to: 'is not null',
    what: 'A row with a live lease counts as stuck.',
    tests: ['monitor'],
  },
  {
    guard: 'monitor.singly-condition',
    from: /sweepCall\((.*), \{ only \}\)/,
    to: 'verdictCall($1, only)',
    what: 'A row that is no longer stuck is changed.',
    tests: ['monitor.explore'],
  },
  {
    guard: 'monitor.isolate',
    to: 'throw error',
    what: 'One bad row fails the batch.',
    tests: ['monitor'],
  },
  {
    guard: 'monitor.run-end',
    from: '100',
    to: '200',
    what: 'A run never ends.',
    tests: ['monitor'],
  },
  {
    guard: 'monitor.function-connections',
    from: / \|\| error instanceof \w+/,
    to: '',
    what: 'Each row may cost a connection.',
    tests: ['monitor'],
  },
  {
    guard: 'monitor.function-verdict-joined',
    from: /, tx(?=\))/,
    to: '',
    what: 'The verdict is written outside its transaction.',
    tests: ['monitor.explore'],
  },
]
