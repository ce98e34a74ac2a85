/**
 * Numbers from 0 up to 1 that look random and are the same for the same seed (splitmix32). Not for secrets.
 *
 * @example
 * const random = seededRandom(7)
 * const sleepMs = 10 + Math.floor(random() * 40)
 */
export function seededRandom(seed: number): () => number {
  let state = mix((seed >>> 0) + mix(Math.floor(seed / 2 ** 32) >>> 0))
  return () => {
    state = (state + 0x9e3779b9) | 0
    return (mix(state) >>> 0) / 2 ** 32
  }
}

/** Spreads a change of one bit over all: seeds 1 and 2 must have nothing in common. */
function mix(value: number): number {
  let bits = value ^ (value >>> 16)
  bits = Math.imul(bits, 0x21f0aaad)
  bits ^= bits >>> 15
  bits = Math.imul(bits, 0x735a2d97)
  return bits ^ (bits >>> 15)
}
