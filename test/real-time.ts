/**
 * Marks a test that is judged by milliseconds. It runs alone, at the end of `.ci/run`; `npm test` leaves it out. A machine
 * with much else to do may stand still for a second or two, so the test may try again. A wait that is too long by mistake is
 * too long each time.
 *
 * Prefer a test that is judged by the order of events.
 */
export const realTime = { tags: ['real-time'], retry: 2 }
