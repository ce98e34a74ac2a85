import { ExplorationError } from '../../../errors.js'

/** What commits within one message cannot be looked at before it is committed. */
export function unseenWrites(who: string, text: string): ExplorationError {
  return new ExplorationError(
    `${who} runs something that commits by itself: ${JSON.stringify(text)}. The explorer cannot see what it has written, and so not undo it between schedules. Send its statements one by one, or pass a \`reset\` that undoes it.`,
    'reset',
    who,
  )
}
