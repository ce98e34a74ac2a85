import { ExplorationError } from '../../../errors.js'

/** What commits within one message cannot be looked at before it is committed. */
export function unseenWrites(who: string, text: string): ExplorationError {
  return new ExplorationError(
    `${who} runs something that commits by itself: ${JSON.stringify(text)}. What it has written cannot be seen, and so not be undone between one time and the next. Send its statements one by one, or pass a \`reset\` that undoes it.`,
    'reset',
    who,
  )
}
