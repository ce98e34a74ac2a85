/** Polls until `probe` answers something other than undefined or false; fails after a bound. */
export declare function until<T>(
  probe: () => Promise<T | undefined | false> | T | undefined | false,
  what: string,
  withinMs?: number,
): Promise<T>
