import { describeHttp } from '../../../test/http/describe-http.js'

describeHttp('fetch', { pipes: false, validates: false, readsBody: true })
