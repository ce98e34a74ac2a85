/** @type {import('../../scripts/mutate/read-mutations.mjs').Mutation[]} */
export default [
  {
    guard: 'proxy.cut-before',
    if: true,
    what: 'A cut after a statement comes before it.',
    tests: ['pg-proxy'],
  },
  {
    guard: 'proxy.black-hole-way',
    from: /\.some\(.*\)$/,
    to: '.length > 0',
    what: 'A black hole in one direction swallows both.',
    tests: ['pg-proxy'],
  },
  {
    guard: 'proxy.cut-answer',
    if: true,
    what: 'The answer to a cut statement is passed on.',
    tests: ['pg-proxy'],
  },
  {
    guard: 'proxy.seeded',
    from: 'random()',
    to: 'Math.random()',
    what: 'Jitter does not come from the seed.',
    tests: ['pg-proxy'],
  },
]
