import { describe, expect, it } from 'vitest';

import { HoneError } from '../domain/errors.ts';
import { parseCostOption, parseEvaluations } from './evaluation-records.ts';

const USD = parseCostOption('usd');
const line = (fields: Record<string, unknown>): string =>
  JSON.stringify({ task: 't1', effort: 'low', success: true, cost: 0.5, ...fields });
const read = (text: string, cost = USD): unknown => parseEvaluations(text, { origin: 'e.jsonl', cost });

function refusal(act: () => unknown): { message: string; cure: string | undefined } {
  try {
    act();
  } catch (error) {
    if (error instanceof HoneError) return { message: error.message, cure: error.cure };
    throw error;
  }
  throw new Error('nothing was refused');
}

describe('parseEvaluations', () => {
  it('reads what hone eval writes and what people write: booleans, shares, numbers as tasks, other keys, blank lines', () => {
    const text = [
      `\uFEFF${line({ success: 0.25, attempt: 3, precision: 0.5, latencySeconds: 2 })}`,
      '',
      line({ task: 7, success: false }),
      line({ cheated: true, success: 1 }),
    ].join('\r\n');
    expect(read(text)).toEqual([
      { taskId: 't1', effort: 'low', success: 0.25, cost: 0.5, cheated: false },
      { taskId: '7', effort: 'low', success: 0, cost: 0.5, cheated: false },
      { taskId: 't1', effort: 'low', success: 0, cost: 0.5, cheated: true },
    ]);
  });

  it('prices counts, and takes one count alone', () => {
    const text = line({ cost: { tokens: 1000, sampledTokens: 100, turns: 3, toolSeconds: 2, lookups: 1 } });
    const priced = parseCostOption('tokens=0.001, turns=0.25,lookups=0.5');
    expect(priced).toMatchObject({
      unit: 'cost',
      weights: { tokens: 0.001, turns: 0.25, lookups: 0.5, toolSeconds: 0 },
    });
    expect(read(text, priced)).toMatchObject([{ cost: 1 + 0.75 + 0.5 }]);
    expect(read(text, parseCostOption('turns'))).toMatchObject([{ cost: 3 }]);
    expect(read(line({ cost: 12 }), parseCostOption('turns'))).toMatchObject([{ cost: 12 }]);
  });

  it.each([
    [line({ success: 1.2 }), 'e.jsonl:1 has the success 1.2, not true, false or a number from 0 to 1.'],
    [line({ cost: -3 }), 'e.jsonl:1 has the cost -3, not a number from 0 up'],
    [line({ cost: { usd: 3 } }), 'e.jsonl:1 has the cost {"usd":3}, not a number from 0 up, or an object of counts'],
    [line({ effort: 'High' }), 'e.jsonl:1 has the effort "High", not a name in lower-case letters'],
    [line({ task: '' }), 'e.jsonl:1 has the task "", not the name of a task.'],
    ['{"task":"t1","effort":"low","cost":1}', 'e.jsonl:1 has no success.'],
    [line({ cheated: 'no' }), 'e.jsonl:1 has the cheated "no", not true or false.'],
    [`${line({})}\n[1]`, 'e.jsonl:2 is [1], not an object.'],
    [
      '{"task":"t1","effort":"low","success":NaN,"cost":0.02}',
      'e.jsonl:1 has the success NaN, which is no number of JSON.',
    ],
    [
      '{"task":"t1","effort":"low","success":1,"cost":{"turns": -Infinity}}',
      'e.jsonl:1 has the turns -Infinity, which is no number of JSON.',
    ],
    [`${line({})}\n{"task":`, 'e.jsonl:2 is not JSON: {"task":.'],
    ['\n \n', 'e.jsonl holds no evaluation.'],
    [`${line({})}\n${line({ cost: { turns: 1 } })}`, 'e.jsonl:2 has a cost of another form than line 1.'],
  ])('refuses %j', (text, message) => {
    expect(refusal(() => read(text)).message).toContain(message);
  });

  it('says of a missing price which counts there are, and of a missing count which price wants it', () => {
    const counted = line({ cost: { turns: 2, tokens: 5 } });
    const unpriced = refusal(() => read(counted, parseCostOption(undefined)));
    expect(unpriced.message).toBe(
      'e.jsonl:1 has a cost of counts (tokens, turns), and nothing says what they are worth.',
    );
    expect(unpriced.cure).toContain('--cost tokens=0.000002,turns=0.01');
    expect(refusal(() => read(counted, parseCostOption('lookups=1'))).message).toBe(
      'e.jsonl:1 has a cost without lookups, which --cost prices.',
    );
    expect(refusal(() => read(line({}), parseCostOption('turns=1'))).message).toContain(
      'a number, but --cost prices counts',
    );
    expect(refusal(() => read(line({ success: null }))).cure).toContain('Leave out rollouts whose machine failed');
  });

  it('tells the first three bad lines and counts the rest', () => {
    const text = Array.from({ length: 6 }, () => line({ success: 2 })).join('\n');
    const { message } = refusal(() => read(text));
    expect(message).toContain('e.jsonl:3 has the success 2');
    expect(message).not.toContain('e.jsonl:4');
    expect(message).toMatch(/; 3 more lines have problems\.$/u);
  });
});

describe('parseCostOption', () => {
  it.each([
    ['tokens=', '--cost has the part "tokens="'],
    ['tokens=-1', '--cost has the part "tokens=-1"'],
    ['words=1', '--cost has the part "words=1"'],
    ['turns=1,turns=2', '--cost has the part "turns=2"'],
    ['turns=1=2', '--cost has the part "turns=1=2"'],
    ['turns=0', '--cost turns=0 has no price above 0'],
    ['5', '--cost is "5", neither prices nor the name of a unit.'],
  ])('refuses %s', (text, message) => {
    expect(() => parseCostOption(text)).toThrow(message);
  });
});
