/** The same for all processes of a machine, in milliseconds. */
export const now = () => Number(process.hrtime.bigint()) / 1e6
