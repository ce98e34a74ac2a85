/** The payload of a job, the same for all contestants. `n` shows afterwards which jobs ran, and how often. */
export const payloadOf = (n) => ({ to: 'someone@example.org', n })

/** In order, so many from the first one on. */
export const payloadsFrom = (first, count) => Array.from({ length: count }, (_, n) => payloadOf(first + n))
