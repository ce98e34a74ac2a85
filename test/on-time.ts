/**
 * For a test that bounds how long something may take. A machine with much else to do may stand still for a second or two;
 * what waits too long by mistake does so each time.
 */
export const onTime = { retry: 2 }
