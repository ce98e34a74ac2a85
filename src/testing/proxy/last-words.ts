import { errorResponse } from '../wire/backend.js'

/** What a server says that dies. What drivers show as the severity is translated. */
export const lastWords = (shown?: string): Buffer =>
  errorResponse({ severity: 'PANIC', shown, code: '58030', message: 'could not write to file' })
