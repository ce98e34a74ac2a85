export const measureJobsGrowth = async () => ({ measured: {}, tables: [] })
