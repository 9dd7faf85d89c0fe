/** Tables and sentences as plain text for a terminal. */

/**
 * The first `leftColumns` columns to the left, the others to the right, `gap` spaces between. All rows have as many cells as
 * `heads`. Ends without a line break.
 */
export function renderTextTable(
  heads: readonly string[],
  rows: readonly (readonly string[])[],
  { leftColumns = 1, gap = 2 }: { readonly leftColumns?: number; readonly gap?: number } = {},
): string {
  const all = [heads, ...rows];
  const widths = heads.map((_, column) => Math.max(...all.map((row) => (row[column] ?? '').length)));
  return all
    .map((row) =>
      row
        .map((cell, column) => {
          const width = widths[column] ?? 0;
          return column < leftColumns ? cell.padEnd(width) : cell.padStart(width);
        })
        .join(' '.repeat(gap))
        .trimEnd(),
    )
    .join('\n');
}

/** Breaks a sentence at spaces, but not before a % nor inside `α = 1`; lines after the first are indented by two. */
export function wrapText(text: string, width = 100): string {
  const lines: string[] = [];
  let line = '';
  for (const word of text.split(/(?<!α|α =) (?!%)/u)) {
    if (line.trim() !== '' && line.length + 1 + word.length > width) {
      lines.push(line);
      line = `  ${word}`;
    } else line = line === '' ? word : `${line} ${word}`;
  }
  return [...lines, line].join('\n');
}
