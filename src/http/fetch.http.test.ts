import { describeHttp } from '../../test/http/describe-http.js'

describeHttp('fetch', { pipes: false, inflates: false, validates: false, readsBody: true })
