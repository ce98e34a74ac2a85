/** One way to write a thing. */
export interface PatternVariant {
  /** Its code stands in the same file between `// #region <name>` and `// #endregion`. */
  readonly name: string
  /** Its heading, where that is not the name. */
  readonly title?: string
  /** What to say of it, where it is neither the first, which has the fault, nor the last, which has the remedy. Markdown. */
  readonly text?: string
}

/**
 * A pattern that is recommended somewhere and does not hold, beside one that does. Code that several variants use stands
 * between `// #region shared` and `// #endregion`.
 */
export interface Pattern<Variant extends PatternVariant> {
  /** What is recommended, for the heading: a noun phrase. Markdown. */
  readonly title: string
  /** What goes wrong, for the table of contents. Markdown. */
  readonly line: string
  /** What is recommended, in which kind of text, and what it promises. Markdown. */
  readonly claim: string
  /** What really happens, and at which statement. Markdown. */
  readonly fault: string
  /** Why the right version holds. Markdown. */
  readonly remedy: string
  readonly tables: string
  /** In the order of the page; mostly `wrong`, then `right`. */
  readonly variants: readonly Variant[]
}
