import { describeConformance } from '../../../test/conformance/describe-conformance.js'
import { openPgClient } from '../../../test/conformance/open-pg-client.js'
import { pgVersions } from '../../../test/pg-versions.js'

for (const { version, pg } of pgVersions.slice(0, -1))
  describeConformance(`a client of pg ${version} after BEGIN`, { open: (schema) => openPgClient(pg, schema) })
