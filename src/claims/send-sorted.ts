/**
 * Sends requests in the order of their subjects. All callers use the same order, so that no two of them deadlock. Returns the
 * results in the order of `requests`.
 */
export async function sendSorted<Q extends { readonly subject: string }, R>(
  requests: readonly Q[],
  send: (sorted: readonly Q[]) => Promise<readonly R[]>,
): Promise<R[]> {
  const sorted = requests
    .map((request, index) => ({ request, index, bytes: Buffer.from(request.subject) }))
    .sort((a, b) => Buffer.compare(a.bytes, b.bytes))
  const results = await send(sorted.map(({ request }) => request))
  const inOrder: R[] = []
  for (const [place, { index }] of sorted.entries()) inOrder[index] = results[place] as R
  return inOrder
}
