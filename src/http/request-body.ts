/** The body of a request: as it came, or as a parser before us has left it. */
export type RequestBody = Uint8Array | { readonly value: unknown } | undefined
