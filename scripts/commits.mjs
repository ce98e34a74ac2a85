// The subjects of commits: at most 72 characters, so that `git log --oneline` and mails show them whole.
import { execFileSync } from 'node:child_process'

export const MAX_SUBJECT = 72

/** Older commits are as they are. A date, because a commit of another history would check nothing. */
const CHECKED_SINCE = '2026-11-19T12:00:00Z'

/** The lines of `git log --format='%h %s'` whose subject is too long. */
export const findLongSubjects = (log) =>
  log
    .split('\n')
    .filter((line) => line.slice(line.indexOf(' ') + 1).length > MAX_SUBJECT)
    .map(
      (line) =>
        `${line}: the subject is longer than ${MAX_SUBJECT} characters. Run: git commit --amend, or git rebase -i`,
    )

/** The commits since that date; none in a copy without history. */
export function readCommits(root, since = CHECKED_SINCE) {
  try {
    return execFileSync('git', ['log', '--no-merges', '--format=%h %s', `--since=${since}`], {
      cwd: root,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    }).trim()
  } catch {
    return ''
  }
}
