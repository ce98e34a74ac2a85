/** The longest that a timer, or a `lock_timeout`, can be set to: 24 days. A longer timer fires at once. */
export const MAX_TIMER_MS = 2 ** 31 - 1
