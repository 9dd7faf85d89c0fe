import { expect, test } from 'vitest';

import { trainTokenizer } from './bpe-trainer.ts';
import { openTokenizer } from './tokenizer.ts';

const texts = [
  'const parseHeader = (header) => header.trim();',
  'function parseHeader(header, size = 16) {\n  return [-header-]{+size+};\n}',
  'héllo → wörld\n',
];
const options = {
  vocabSize: 340,
  specialTokens: ['<|end|>', '<|user|>'],
  addedTokens: ['[-', '-]', '{+', '+}', 'off-by-one'],
};
const configJson = { eos_token: '<|end|>', chat_template: '' };

test('the same texts give the same vocabulary, in whatever order they are read', () => {
  expect(trainTokenizer([...texts].reverse(), options)).toEqual(trainTokenizer(texts, options));
});

test('any text survives encoding and decoding, and added words are one token each', () => {
  const tokenizer = openTokenizer(trainTokenizer(texts, options), configJson);
  for (const text of [...texts, '\u0000\ufeff 日本語 \t\r\n', 'off-by-one<|end|>[-x-]{+y+}', ' '.repeat(9)])
    expect(tokenizer.decode(tokenizer.encode(text))).toBe(text);
  expect([...tokenizer.encode('off-by-one<|end|>')]).toEqual([tokenizer.idOf('off-by-one'), tokenizer.idOf('<|end|>')]);
  expect(tokenizer.vocabSize).toBeLessThanOrEqual(options.vocabSize);
});

test('the most frequent pair merges first, ties by their text, and a name is the same tokens wherever it stands', () => {
  // Counted in words: `ab` 3 times, `cd` and `ef` twice each.
  const json = trainTokenizer(['ab ab ab ef ef cd cd'], { vocabSize: 256 + 3, specialTokens: [], addedTokens: [] });
  expect(json).toMatchObject({
    model: {
      merges: [
        ['a', 'b'],
        ['c', 'd'],
        ['e', 'f'],
      ],
    },
  });
  const tokenizer = openTokenizer(trainTokenizer(texts, options), configJson);
  const name = [...tokenizer.encode('header')];
  const call = [...tokenizer.encode('f(header, header)')];
  const starts = call.flatMap((_, at) => (name.every((id, index) => call[at + index] === id) ? [at] : []));
  expect(starts).toHaveLength(2);
});
