import type { Database } from '../postgres/database.js'
import type { TextValue } from '../postgres/text-values.js'
import { keepHistory } from './job-statements.js'

/** A drop waits for whoever reads the history for no longer, since others queue behind it. What is left is dropped the next time. */
const DROP_MS = 100

const ANSWER_MS = 10_000

/** What `job_history_keep` is told: makes the days that are needed for what is kept for so long, and drops those whose time is over. */
export const historyValues = (keepDays: Iterable<number>): TextValue[] => [
  `{${[...keepDays].join(',')}}`,
  String(DROP_MS),
]

/** Drops the days whose time is over; says how many. */
export async function forgetJobDays(database: Database): Promise<number> {
  const [row] = await database.sendWithin(ANSWER_MS, keepHistory, historyValues([]))
  return Number(row?.count)
}
