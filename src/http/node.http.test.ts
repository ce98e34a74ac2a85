import { describeHttp } from '../../test/http/describe-http.js'

describeHttp('node', { validates: false, inflates: false, readsBody: true })
