import fc from 'fast-check';
import { expect, test } from 'vitest';

import { canonicalArguments, canonicalJson, parseToolCalls, settledContentLength } from './tool-calls.ts';

test('canonical JSON ignores key order and spacing, and nothing else', () => {
  expect(canonicalArguments('{ "b": [1, {"d": null, "c": 2}], "a": "x" }')).toBe('{"a":"x","b":[1,{"c":2,"d":null}]}');
  expect(canonicalArguments('{"a": 1')).toBe('{"a": 1');
  fc.assert(
    fc.property(fc.jsonValue(), (value) => {
      expect(JSON.parse(canonicalJson(value))).toEqual(JSON.parse(JSON.stringify(value)));
    }),
  );
});

test('calls are read with the text before them; several in order', () => {
  const text =
    'I look.\n\n<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>\n<tool_call>{"name": "list"}</tool_call>';
  expect(parseToolCalls(text)).toEqual({
    content: 'I look.',
    calls: [
      { name: 'read', arguments: '{"path":"a"}' },
      { name: 'list', arguments: '{}' },
    ],
  });
});

test.each([
  '<tool_call>{"name": "read"',
  '<tool_call>{"arguments": {}}</tool_call>',
  '<tool_call>{"name": "a", "arguments": [1]}</tool_call>',
  '<tool_call>{"name":"a"}</tool_call> <tool_call>x</tool_call>',
])('%s stays text', (text) => expect(parseToolCalls(text)).toEqual({ content: text, calls: [] }));

test('what a stream has settled is always a beginning of the final content', () => {
  const piece = fc.constantFrom(
    'a',
    ' ',
    '\n',
    '<',
    '<tool',
    '<tool_call>',
    '{"name": "f", "arguments": {}}',
    '</tool_call>',
    '>',
  );
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 10 }), (pieces) => {
      const whole = pieces.join('');
      const { content } = parseToolCalls(whole);
      let settled = 0;
      for (let length = 0; length <= whole.length; length++) {
        const next = settledContentLength(whole.slice(0, length));
        expect(content.startsWith(whole.slice(0, next))).toBe(true);
        settled = Math.max(settled, next);
      }
      expect(settled).toBeLessThanOrEqual(content.length);
    }),
    { numRuns: 500 },
  );
});
