/** Describes the end of a lease, for a message, after the name of the holder. */
export const describeLease = (until: Date | undefined): string =>
  until ? ` (lease until ${until.toISOString()}, unless renewed)` : ''
