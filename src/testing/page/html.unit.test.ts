import { expect, it } from 'vitest'
import { html } from './html.js'
import { pageDocument } from './page-document.js'

it('takes what is filled in for text, and what it made itself for markup', () => {
  const evil = `<b onclick="x('&')">`
  expect(html`<p title="${evil}">${evil}${html`<i>${evil}</i>`}</p>`.text).toBe(
    '<p title="&lt;b onclick=&quot;x(&#39;&amp;&#39;)&quot;&gt;">&lt;b onclick=&quot;x(&#39;&amp;&#39;)&quot;&gt;<i>&lt;b onclick=&quot;x(&#39;&amp;&#39;)&quot;&gt;</i></p>',
  )
})

it('joins lists, and leaves out what is not there', () => {
  expect(html`${['<', html`<br>`]}${false}${undefined}${0}`.text).toBe('&lt;<br>0')
})

it('makes a page that may run nothing but its own script, and reach nothing', () => {
  const page = pageDocument({
    title: '</title><script>alert(1)</script>',
    isBad: true,
    body: html`x`,
    files: [],
  })
  expect(page).toContain('<title>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;</title>')
  expect(page.match(/<script>/g)).toHaveLength(2)
  expect(page).toMatch(/default-src &#39;none&#39;;.* script-src (&#39;sha256-[\w+/=]+&#39; ?){2};/)
})
