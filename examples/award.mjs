// Ten clicks on "log the prayer, 10 points": one in a day, 50 points at most, each request once. All of it or nothing.
import { AcquireRefusedError, claim, Dibs } from 'dibs'

const dibs = await Dibs.open()
await dibs.pool.query('create table award_example (child text, day text, points int)')

const points = dibs.quota('award-example', { limit: 50, per: 'day', timeZone: 'Asia/Karachi' })

/** One request to log a prayer. */
const log = (key, child, holder) =>
  dibs.acquire(
    [
      claim.once({ scope: 'award-example', key }),
      claim.singleton({ scope: ['award-example', child], per: 'day', timeZone: 'Asia/Karachi', holder }),
      points.claim(child, 10, { id: key }),
    ],
    async (tx, [_, slot, use]) => {
      await tx.query('insert into award_example values ($1, $2, 10)', [child, slot.key])
      return { slot, remaining: use.remaining }
    },
  )

const clicks = await Promise.allSettled(
  Array.from({ length: 10 }, (_, n) => log(`click-${process.pid}-${n}`, 'ann', 'father')),
)
const done = clicks.filter(({ status }) => status === 'fulfilled')
const refused = clicks.filter(({ reason }) => reason instanceof AcquireRefusedError)
const [{ error: why }] = refused[0].reason.failures
console.log(`ten clicks: ${done.length} logged, ${refused.length} refused: "${why.holder}" was first`)

const key = `click-${process.pid}-${clicks.indexOf(done[0])}`
const again = await log(key, 'ann', 'father')
console.log(
  `the same click again: ${again.remaining} points left, as before; used: ${(await points.peek('ann')).used}`,
)

const voids = await Promise.all(
  Array.from({ length: 5 }, () =>
    dibs.voidSlot({ scope: ['award-example', 'ann'], slot: again.slot }, async (tx) => {
      await points.refund(key, { tx })
      await tx.query("delete from award_example where child = 'ann'")
    }),
  ),
)
console.log(
  `five undo it: ${voids.filter(({ ok }) => ok).length} did; used: ${(await points.peek('ann')).used}`,
)

await dibs.pool.query('drop table award_example')
await dibs.close()
