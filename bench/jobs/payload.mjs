/** The same for all. Its number tells afterwards which have run, and how often. */
export const payloadOf = (n) => ({ to: 'someone@example.org', n })

/** In order, so many from the first one on. */
export const payloadsFrom = (first, count) => Array.from({ length: count }, (_, n) => payloadOf(first + n))
