import { describe, expect, it } from 'vitest'
import { InvalidInputError } from '../errors.js'
import { checkSchemaName, quoteIdentifier, renderSchema } from './identifier.js'

describe('quoteIdentifier', () => {
  it('doubles quotes', () => {
    expect(quoteIdentifier('a"b')).toBe('"a""b"')
  })

  it.each(['', 'a\0b', 'x'.repeat(64), 'é'.repeat(32)])('refuses %j', (name) => {
    expect(() => quoteIdentifier(name)).toThrow(InvalidInputError)
  })
})

describe('checkSchemaName', () => {
  it.each(['dibs', 'Dibs_2', '_x', 'a'.repeat(50)])('accepts %s', (name) => {
    expect(checkSchemaName(name)).toBe(name)
  })

  it.each([
    'dibs"; drop schema public cascade; --',
    'a.b',
    'a b',
    '1a',
    '',
    'pg_dibs',
    'PG_x',
    'information_schema',
    'a'.repeat(51),
    undefined,
    7,
  ])('refuses %j', (name) => {
    expect(() => checkSchemaName(name)).toThrow(InvalidInputError)
  })
})

it('renders every {schema}', () => {
  expect(renderSchema('select {schema}.a(), {schema}.b()', 'Dibs')).toBe('select "Dibs".a(), "Dibs".b()')
})
