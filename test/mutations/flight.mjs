// Single-flight: what keeps two from loading, the late from publishing, and the forgotten from being given.
const sql = 'sql/0019_flight.sql'
const calls = ['src/locks/single-flight.test.ts']
const loss = ['src/locks/flight-loss.test.ts']
const explored = ['src/locks/single-flight.explore.test.ts']

/** @type {[name: string, from: string, to: string, tests: string[]][]} */
const inSql = [
  [
    'whoever has the lead does not look again',
    "  if v_state in ('ended', 'failed') or v_state <> 'absent' and (",
    '  if false and (',
    explored,
  ],
  [
    'a leader that is late publishes',
    "and l.permit = 0 and l.fence = p_fence and l.expires_at > '-infinity' for no key update",
    'and l.permit = 0 for no key update',
    loss,
  ],
  [
    'what was forgotten is fresh',
    'when f.fence > f.floor and f.fresh_until > p_now',
    'when f.fresh_until > p_now',
    calls,
  ],
  [
    'what was forgotten is stale',
    'when f.fence > f.floor and f.stale_until > p_now',
    'when f.stale_until > p_now',
    calls,
  ],
  [
    'a failure that was forgotten is kept',
    'when f.failed_fence > f.floor and f.failed_until > p_now',
    'when f.failed_until > p_now',
    calls,
  ],
  ['those who wait are not given what is not kept', 'when f.fence >= p_after then', 'when false', calls],
  ['those who wait do not hear of a failure', 'when f.failed_fence >= p_after', 'when false', calls],
  ['what is being loaded is not forgotten', 'values (p_key, v_fence,', 'values (p_key, 0,', calls],
  [
    'maintenance removes the floor of a load',
    "l.permit = 0 and l.expires_at > '-infinity')\n    order by",
    'l.permit = 0 and false)\n    order by',
    calls,
  ],
  [
    'a value that is newer is rejected for an older one',
    'where f.key = p_key and f.fence = p_fence and f.floor < f.fence',
    'where f.key = p_key and f.floor < f.fence',
    calls,
  ],
  ['what does not fit stays', 'set floor = f.fence where', 'set floor = f.floor where', calls],
  ['nobody loads early', 'p_early * v_seen.load_ms', '0 * v_seen.load_ms', calls],
  [
    'a publication that is repeated is refused',
    'if p_fence in (v_flight.fence, v_flight.failed_fence) then',
    'if false then',
    loss,
  ],
  [
    'whoever waits takes what was there before',
    'greatest(v_seen.fence, v_seen.failed_fence, v_seen.floor, 0) + 1',
    '1',
    calls,
  ],
]

/** @type {[file: string, name: string, from: string, to: string, tests: string[]][]} */
const around = [
  [
    'key-flight.ts',
    'a late caller is given what was refused',
    "(how === 'published' && !isForgotten)",
    '!isForgotten',
    ['src/locks/flight-loss.test.ts'],
  ],
  [
    'key-flight.ts',
    'a late caller is given what was forgotten before it came',
    "present.has(call) || (how === 'published' && !isForgotten)",
    "present.has(call) || how === 'published'",
    calls,
  ],
  [
    'key-flight.ts',
    'whoever comes while it is asked is given that answer',
    'for (const [n, call] of asked.entries()) call.end(readAnswer(answer, n === 0))\n        return true',
    'for (const [n, call] of [...this.#calls].entries()) call.end(readAnswer(answer, n === 0))\n        return true',
    loss,
  ],
  ['key-flight.ts', 'a load of one’s own is not waited for', '    own.stopTimer()\n', '', calls],
  [
    'key-flight.ts',
    'whoever has lost the lead is told its own error',
    'if (isLost && this.#loads < MAX_LOADS)',
    'if (isLost && this.#loads < 0)',
    loss,
  ],
  [
    'key-flight.ts',
    'it is loaded again without an end',
    'this.#loads < MAX_LOADS',
    'this.#loads < 1_000_000',
    loss,
  ],
  [
    'key-flight.ts',
    'nobody loads by itself when the database is away',
    "isTried && (call.spec.onTimeout === 'load' ||",
    'isTried && (false ||',
    loss,
  ],
  [
    'key-flight.ts',
    'all share one value',
    '(isFirst ? value : JSON.parse(text).value)',
    '(isFirst || text ? value : undefined)',
    calls,
  ],
  [
    'key-flight.ts',
    'loads in the background that hang are begun without an end',
    'const mayLoad = this.#running.of(this.#key) < MAX_HANGING',
    'const mayLoad = true',
    loss,
  ],
  [
    'running-loads.ts',
    'a load that has ended hangs',
    '      const left = this.of(key) - 1\n',
    '      const left = this.of(key)\n',
    loss,
  ],
  [
    'key-flight.ts',
    'a hint makes a database that is away be asked without a pause',
    '        this.#bell.forget()\n        await this.#sleep',
    '        await this.#sleep',
    loss,
  ],
  [
    'flight-lead.ts',
    'what does not fit is published',
    "      await checkOutcome(result, 'value', readLoaded(json))\n",
    '      void [checkOutcome, result]\n',
    calls,
  ],
  [
    'single-flight.ts',
    'what does not fit, and is loaded for its caller alone, was stored',
    "      await checkOutcome(spec.result, 'value', value)\n",
    '      void checkOutcome\n',
    calls,
  ],
  [
    'single-flight.ts',
    'what is there and does not fit is an error',
    'if (fence === undefined || !(error instanceof StoredValueError)) throw error',
    'throw error',
    calls,
  ],
  [
    'single-flight.ts',
    'who has found what does not fit goes on after close',
    '    if (this.#isClosed) throw new ClosedError()\n',
    '    void ClosedError\n',
    loss,
  ],
  [
    'single-flight.ts',
    'a pool that is full is the load of another',
    'if (behind === undefined) throw this.#parts.database.busy(waitedMs)',
    '',
    calls,
  ],
  [
    'key-flight.ts',
    'whoever comes to a load of this process waits for another',
    "      call.hasWaited = true\n      call.behind = 'this process'\n",
    "      call.hasWaited = true\n      call.behind = 'another process'\n",
    calls,
  ],
  [
    'key-flight.ts',
    'loads of this process that hang are those of another',
    "for (const call of present) call.behind = 'this process'",
    "for (const call of present) call.behind = 'another process'",
    loss,
  ],
  [
    'key-flight.ts',
    'a load of one’s own is waited for after close',
    'if (this.#isClosed) this.#endAll',
    'if (false) this.#endAll',
    loss,
  ],
  [
    'flight-lead.ts',
    'nobody is told that a load has ended',
    'if (told.isWanted) this.#parts.wakeups.hint(topicOf(this.#lock.name))',
    '',
    calls,
  ],
  ['flight-lead.ts', 'the lead is renewed after its end', '    this.#lock.handOver()\n', '', loss],
  [
    'flight-lead.ts',
    'the newer value is not given',
    'const newer = told.isNewer ?',
    'const newer = told.isNewer && false ?',
    loss,
  ],
  [
    'flight-call.ts',
    'whoever is not to wait does',
    'if (this.spec.waitMs === 0) this.end',
    'if (false) this.end',
    calls,
  ],
]

/** @type {import('./mutation.mjs').Mutation[]} */
export const flightMutations = [
  ...inSql.map(([name, from, to, tests]) => ({ name: `flight: ${name}`, file: sql, from, to, tests })),
  ...around.map(([file, name, from, to, tests]) => ({
    name: `flight: ${name}`,
    file: `src/locks/${file}`,
    from,
    to,
    tests,
  })),
  {
    name: 'flight: close does not end the wait for others',
    file: 'src/dibs.ts',
    from: '    this.#flights.stopWaiting()\n',
    to: '',
    tests: loss,
  },
  {
    name: 'flight: what is for good is told as passing',
    file: 'src/postgres/stored-failure.ts',
    from: '?.isPermanent ? PermanentError : TransientError',
    to: '?.isPermanent ? TransientError : TransientError',
    tests: calls,
  },
]
