import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { byteTokenizerFiles } from './tokenizer.fixture.ts';
import { openTokenizer } from './tokenizer.ts';

const open = () => {
  const { json, config } = byteTokenizerFiles();
  return openTokenizer(json, config);
};

describe('tokenizer', () => {
  test('decode undoes encode for any text, special tokens included', () => {
    const tokenizer = open();
    const piece = fc.oneof(
      fc.string({ unit: 'binary', maxLength: 20 }),
      fc.constantFrom('<|im_end|>', '<|im_start|>', '\uFEFF', ' looking', '\r\n', '👩‍👩‍👧', '\u2028'),
    );
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 8 }), (pieces) => {
        const text = pieces.join('');
        expect(tokenizer.decode(tokenizer.encode(text))).toBe(text);
      }),
      { numRuns: 300 },
    );
  });

  test('special tokens in the text become their ids and none is added', () => {
    const tokenizer = open();
    const end = tokenizer.idOf('<|im_end|>');
    expect(Array.from(tokenizer.encode('ok<|im_end|>'))).toEqual([tokenizer.idOf('ok'), end]);
    expect(tokenizer.endOfSequence.id).toBe(end);
    expect(tokenizer.encode('')).toHaveLength(0);
  });

  test('a stream decoder holds back half characters and agrees with decode', () => {
    const tokenizer = open();
    const decoder = tokenizer.createStreamDecoder();
    const ids = [...new TextEncoder().encode('é€👍')].map((byte) => byteToken(tokenizer.decode, byte));
    const pieces = ids.map((id) => decoder.push(id));
    expect(pieces.filter((text) => text.length > 0)).toEqual(['é', '€', '👍']);
    const cut = tokenizer.createStreamDecoder();
    expect(cut.push(ids[2] ?? -1) + cut.push(ids[3] ?? -1) + cut.flush()).toBe(tokenizer.decode(ids.slice(2, 4)));
  });

  test('missing special tokens are named', () => {
    const { json, config } = byteTokenizerFiles();
    expect(() => openTokenizer(json, { ...config, eos_token: '<|stop|>' })).toThrow(/<\|stop\|>/);
    expect(() => openTokenizer(json, {})).toThrow(/eos_token/);
    expect(() => openTokenizer(json, config, { chatTemplate: "{{ '<|start_header_id|>' }}" })).toThrow(
      /<\|start_header_id\|>/,
    );
  });

  test('a vocabulary without all bytes, a prefix space and another family are refused', () => {
    const { json, config } = byteTokenizerFiles();
    const model = json['model'] as { vocab: Record<string, number> };
    const { A: dropped, ...vocab } = model.vocab;
    expect(dropped).toBeDefined();
    expect(() => openTokenizer({ ...json, model: { ...model, vocab } }, config)).toThrow(/0x41/);
    expect(() =>
      openTokenizer({ ...json, pre_tokenizer: { type: 'ByteLevel', add_prefix_space: true } }, config),
    ).toThrow(/space/);
    expect(() => openTokenizer({ ...json, model: { ...model, type: 'Unigram' } }, config)).toThrow(HoneError);
  });
});

/** The id of a single byte, found through decode so that the test does not repeat the byte table. */
function byteToken(decode: (ids: ArrayLike<number>) => string, byte: number): number {
  const { json } = byteTokenizerFiles();
  const model = json['model'] as { vocab: Record<string, number> };
  // The fixture numbers its single bytes by value.
  expect(Object.values(model.vocab)[byte]).toBe(byte);
  expect(decode([byte])).toBeDefined();
  return byte;
}
