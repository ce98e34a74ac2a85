import { Dibs } from '../../dist/index.js'

/** Opens Dibs with options that fail. Reports why, and what still keeps this process from ending. */
const options = JSON.parse(process.argv[2])
const failure = await Dibs.open(options).then(
  async (dibs) => {
    await dibs.close()
    return { name: 'none', message: 'it opened' }
  },
  ({ name, message }) => ({ name, message }),
)
process.send(failure)
process.disconnect()
