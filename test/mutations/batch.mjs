/** @type {import('../../scripts/mutate/read-mutations.mjs').Mutation[]} */
export default [
  {
    guard: 'batch.timeout-of-all',
    from: / && !\(.*\)/,
    to: '',
    what: 'A slow server gets the calls of a batch one by one.',
    tests: ['coalescer.unit'],
  },
  {
    guard: 'batch.answer-order',
    from: '[n]',
    to: '[0]',
    what: 'An answer goes to another caller.',
    tests: ['coalescer.unit', 'quota'],
  },
  {
    guard: 'batch.split-refused',
    what: 'A refused statement fails the calls of all its keys.',
    tests: ['coalescer.unit'],
  },
  {
    guard: 'batch.bad-item-alone',
    if: true,
    what: 'One refused call fails the whole batch.',
    tests: ['coalescer.unit'],
  },
  {
    guard: 'batch.retry-locked',
    to: 'return false',
    what: 'A call whose row is locked is dropped.',
    tests: ['coalescer.unit'],
  },
  {
    guard: 'batch.lanes',
    from: /= .*/,
    to: '= Number.POSITIVE_INFINITY',
    what: 'Any number of batches is under way.',
    tests: ['coalescer.unit'],
  },
  {
    guard: 'batch.max-size',
    from: /if \((.*) === \w+\) break/,
    to: '$1',
    what: 'A batch has no maximum size.',
    tests: ['coalescer.unit'],
  },
  {
    guard: 'batch.timed-out-not-sent',
    what: 'A call that was refused is sent all the same.',
    tests: ['coalescer.unit'],
  },
  {
    guard: 'batch.key-once',
    from: / \|\| [^)]*/,
    to: '',
    what: 'Calls of one key run in two batches at a time.',
    tests: ['coalescer.unit'],
  },
  {
    guard: 'batch.wait-bound',
    what: 'A call waits to be sent without a limit.',
    tests: ['coalescer.unit', 'quota'],
  },
  {
    guard: 'batch.key-turns',
    if: false,
    what: 'Calls of one process each hold a connection while they wait.',
    tests: ['keyed-mutex.unit'],
  },
]
