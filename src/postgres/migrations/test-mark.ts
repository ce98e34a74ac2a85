/** The comment on a schema that tests may bend to their needs. */
export const TEST_MARK = 'made for tests by dibs/testing'
