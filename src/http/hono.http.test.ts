import { describeHttp } from '../../test/http/describe-http.js'

describeHttp('hono', { pipes: false, inflates: false, readsBody: true })
