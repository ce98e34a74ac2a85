// One of several processes that move money between the same few accounts, in all directions at once. Prints what became of it.
import { Dibs } from 'dibs'
import { transfer } from './transfer.mjs'

const [count = '100', seed = '1'] = process.argv.slice(2)
let state = Number(seed)
const draw = (most) => {
  state = (state * 48271) % 2147483647
  return state % most
}

const dibs = await Dibs.open({ listen: false })
const outcomes = { moved: 0, refused: 0, other: [] }

async function moveSome() {
  const [from, other, amount] = [draw(4), draw(3), 1 + draw(60)]
  const to = other >= from ? other + 1 : other
  try {
    await transfer(dibs, { from: `a${from}`, to: `a${to}`, amount })
    outcomes.moved++
  } catch (error) {
    if (error.rule === 'insufficient-funds') outcomes.refused++
    else outcomes.other.push(`${error}`)
  }
}

for (let left = Number(count); left > 0; left -= 8) await Promise.all(Array.from({ length: 8 }, moveSome))
console.log(JSON.stringify(outcomes))
await dibs.close()
