import { EmbeddedServerError, type EmbeddedServerFailure } from '../../errors.js'

interface Symptom {
  readonly sign: RegExp
  readonly reason: EmbeddedServerFailure
  /** A sentence that follows "The embedded PostgreSQL of …" */
  readonly advice: string
}

/** Messages of PostgreSQL, initdb and the system, in English since they run with LC_ALL=C. The first that matches counts. */
const symptoms: readonly Symptom[] = [
  {
    sign: /shared memory segment|map anonymous shared memory|memory limit of shared memory/i,
    reason: 'shared-memory',
    advice:
      'does not get the shared memory it asks for. Lower `shared_buffers` in `embedded.settings`, give the machine more memory, or, in a container, a larger /dev/shm (`--shm-size=256m`).',
  },
  {
    sign: /pre-existing shared memory block/i,
    reason: 'already-running',
    advice:
      'cannot start while processes of an earlier server on the same data still run. End them: their command line names the data folder.',
  },
  {
    sign: /could not bind .*Address already in use|Is another postmaster already running on port/i,
    reason: 'port-taken',
    advice:
      'cannot listen on its port: another program does. Choose another `embedded.port`, or leave it out.',
  },
  {
    sign: /could not bind .*Permission denied/i,
    reason: 'no-permission',
    advice:
      'may not listen on its port; those below 1024 are for root. Choose another `embedded.port`, or leave it out.',
  },
  {
    sign: /No space left on device|Check free disk space|Disk quota exceeded|ENOSPC|EDQUOT/i,
    reason: 'disk-full',
    advice:
      'has no room on its disk. An empty one needs about 100 MB there. Free some, or choose another `embedded.dir`.',
  },
  {
    sign: /invalid value for parameter "lc_|invalid locale|locale .*(?:not recognized|not found|could not be)|is not recognized by setlocale|ICU locale/i,
    reason: 'locale-missing',
    advice:
      'was asked for a locale that this system does not have. Install that locale, or leave the setting out.',
  },
  {
    sign: /unrecognized configuration parameter|invalid value for parameter|parameter .* requires a|is outside the valid range|must be less than|cannot be changed|configuration file .* contains errors|could not (?:access|open|load) .*(?:file|certificate|library|hba)|SSL is not supported/i,
    reason: 'bad-setting',
    advice: 'does not accept one of `embedded.settings`.',
  },
  {
    sign: /database files are incompatible with server|initialized by PostgreSQL version/i,
    reason: 'other-version',
    advice: 'cannot use data of another version of PostgreSQL.',
  },
  {
    sign: /ENOTDIR|EEXIST|[Nn]ot a directory/,
    reason: 'unknown',
    advice: 'cannot be there: a file is in the way. Choose another `embedded.dir`.',
  },
  {
    sign: /Permission denied|EACCES|EPERM|EROFS|Read-only file system|has wrong ownership|has invalid permissions|Operation not permitted/i,
    reason: 'no-permission',
    advice:
      'lacks a permission. Check who owns the folder and whether it may be written to, or choose another `embedded.dir`.',
  },
]

/** The most useful lines of the output of a server that ended, without time and process. */
function lastWords(text: string, sign: RegExp | undefined): string {
  const lines = text.split('\n').map((line) => line.replace(/^\d{4}-\S+ \S+ \S+ \[\d+\] /, '').trim())
  const telling = lines.filter(
    (line) => sign?.test(line) || /\b(FATAL|PANIC|ERROR|WARNING|HINT|DETAIL|error): /.test(line),
  )
  const chosen = telling.length > 0 ? telling : lines.filter((line) => line !== '')
  return chosen.slice(-4).join('\n').slice(-2_000)
}

/** Makes the error for a server that did not start, with advice and the last lines of its output. */
export function explainFailure(text: string, folder: string, log?: string): EmbeddedServerError {
  const symptom = symptoms.find(({ sign }) => sign.test(text))
  const advice = symptom?.advice ?? 'did not start.'
  const words = lastWords(text, symptom?.sign)
  const message = [
    `The embedded PostgreSQL of ${folder} ${advice}`,
    ...(words ? [`Reported: ${words}`] : []),
    ...(log ? [`Its log is ${log}.`] : []),
    ...(symptom ? [] : ['If it does not start, give the URL of a PostgreSQL that runs.']),
  ]
  return new EmbeddedServerError(message.join(words ? '\n' : ' '), symptom?.reason ?? 'unknown', folder)
}

/** True for a mistake in the code, such as a TypeError, whose stack says more than advice. */
export function isProgrammingError(error: unknown): boolean {
  return !(error instanceof EmbeddedServerError) && typeof (error as NodeJS.ErrnoException)?.code !== 'string'
}

/** Makes the error from an error of the system, such as `EACCES: permission denied, mkdir …`. */
export function asEmbeddedServerError(error: unknown, folder: string): EmbeddedServerError {
  if (error instanceof EmbeddedServerError) return error
  const text = error instanceof Error ? error.message : String(error)
  const explained = explainFailure(text, folder)
  return new EmbeddedServerError(explained.message, explained.reason, folder, { cause: error })
}
