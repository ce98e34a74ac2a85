import pg from 'pg'
import { describeConformance } from '../../../test/conformance/describe-conformance.js'
import { openPgClient } from '../../../test/conformance/open-pg-client.js'

describeConformance('a client of pg after BEGIN', { open: (schema) => openPgClient(pg, schema) })
