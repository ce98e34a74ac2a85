import { describeHttp } from '../../../test/http/describe-http.js'

describeHttp('nest-fastify')
