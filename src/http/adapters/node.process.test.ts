import { describeHttp } from '../../../test/http/describe-http.js'

describeHttp('node', { validates: false, readsBody: true })
