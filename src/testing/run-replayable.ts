import { InvalidInputError, ScheduleDivergedError } from '../errors.js'
import { callSite } from './gate/call-site.js'
import { identityOf } from './identity-of.js'

const FORMS = {
  exploration: /^v1:/,
  'crash loop': /^(?:none|(?:crash|error|half-open|zombie|server|process):.*)$/,
}

interface Replayable {
  readonly name?: string | undefined
  readonly replay?: string | undefined
}

/**
 * Runs an exploration or a crash loop. If `DIBS_REPLAY` is meant for this call, only what the variable names is run. A call
 * that the variable does not fit runs in full, and says so on standard error: other tests of the process must not fail.
 */
export async function runReplayable<Options extends Replayable, Report extends { readonly verdict: string }>(
  what: keyof typeof FORMS,
  options: Options,
  run: (options: Options) => Promise<Report>,
): Promise<Report> {
  const given = process.env.DIBS_REPLAY
  if (!given || options.replay !== undefined) return run(options)
  if (!Object.values(FORMS).some((form) => form.test(given)))
    throw new InvalidInputError(
      'DIBS_REPLAY',
      `must be the string of a printout, like v1:aabba:3fc2097e11@8c1f20 or crash:after-3@8c1f20, not ${JSON.stringify(given)}`,
    )
  const [replay, identity] = given.split('@')
  const own = identityOf(options)
  const called = options.name === undefined ? what : `${what} ${JSON.stringify(options.name)}`
  const subject = `the ${called} at ${callSite(new Error()) ?? 'a place unknown'}`
  const say = (text: string): void => console.warn(`DIBS_REPLAY=${given}${text}`)
  if (!FORMS[what].test(given) || (identity !== undefined && identity !== own)) {
    say(` is not for ${subject}, whose identity is ${own}: it runs in full.`)
    return run(options)
  }
  try {
    const report = await run({ ...options, replay })
    if (report.verdict === 'passed') say(`: ${subject} ran this alone, and it passed.`)
    return report
  } catch (error) {
    // The options were checked before, so an invalid one can only be the replay.
    if (!(error instanceof ScheduleDivergedError || error instanceof InvalidInputError)) throw error
    const misfit =
      identity === undefined
        ? `does not fit ${subject}`
        : `no longer fits ${subject}, whose steps have changed`
    const reason = error.message.split('\n').slice(0, 3).join('\n')
    say(` ${misfit}: it runs in full.\n${reason}`)
    return run(options)
  }
}
