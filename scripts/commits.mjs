// The subjects of commits: at most 72 characters, so that `git log --oneline` and mails show them whole.
import { execFileSync } from 'node:child_process'

export const MAX_SUBJECT = 72

/** Older commits are as they are. */
const CHECKED_SINCE = '5b1c14ff736fc88317ef453851c1cc24f27bc4ce'

/** The lines of `git log --format='%h %s'` whose subject is too long. */
export const findLongSubjects = (log) =>
  log
    .split('\n')
    .filter((line) => line.slice(line.indexOf(' ') + 1).length > MAX_SUBJECT)
    .map(
      (line) =>
        `${line}: the subject is longer than ${MAX_SUBJECT} characters. Run: git commit --amend, or git rebase -i`,
    )

/** The commits since the recorded one; none in a copy without history, and in a shallow one. */
export function readCommits(root, since = CHECKED_SINCE) {
  const args = ['log', '--no-merges', '--format=%h %s', `${since}..HEAD`]
  try {
    return execFileSync('git', args, {
      cwd: root,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    }).trim()
  } catch {
    return ''
  }
}
