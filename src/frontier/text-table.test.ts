import { describe, expect, it } from 'vitest';

import { renderTextTable, wrapText } from './text-table.ts';

describe('renderTextTable', () => {
  it('sets the first columns to the left and the others to the right', () => {
    const heads = ['rule', 'effort', 'saving'];
    const rows = [
      ['fixed', 'low', '-1.5'],
      ['α = 0', 'medium', '12.25'],
    ];
    expect(renderTextTable(heads, rows)).toBe('rule   effort  saving\nfixed     low    -1.5\nα = 0  medium   12.25');
    expect(renderTextTable(heads, rows, { leftColumns: 2, gap: 1 })).toBe(
      'rule  effort saving\nfixed low      -1.5\nα = 0 medium  12.25',
    );
  });
});

describe('wrapText', () => {
  it('breaks between words, and neither before a % nor inside the value of an alpha', () => {
    expect(wrapText('one two three four', 8)).toBe('one two\n  three\n  four');
    expect(wrapText('it saves 10 % and', 11)).toBe('it saves\n  10 % and');
    expect(wrapText('at effort α = 0.5 it', 14)).toBe('at effort\n  α = 0.5 it');
  });
});
