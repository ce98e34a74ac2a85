import { describeHttp } from '../../../test/http/describe-http.js'

describeHttp('express5')
