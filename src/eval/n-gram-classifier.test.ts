/** The n-gram control learns what one line shows, in seconds, the same way each time. */
import { describe, expect, it } from 'vitest';

import { createRandom } from '../domain/ids.ts';
import type { Task } from '../domain/task.ts';
import { forcedChoice } from './line-scores.ts';
import { diffTokens, scoreLines, trainNGramClassifier } from './n-gram-classifier.ts';
import { makeTask } from './tasks.fixture.ts';
import type { EditTuple } from './tasks.fixture.ts';

/** Bugs weaken a loop's bound or negate a test; benign edits are their inverses. Names are new in every task. */
function makeTasks(count: number, seed: number): Task[] {
  const random = createRandom(seed);
  const name = (): string => `name${random.below(100_000)}`;
  return Array.from({ length: count }, (_, index) => {
    const edits = Array.from({ length: 4 }, (__, position): EditTuple => {
      const [list, cursor] = [name(), name()];
      const right =
        random.next() < 0.5
          ? `for (let ${cursor} = 0; ${cursor} < ${list}.length; ${cursor}++) {`
          : `if (${list}.has(${cursor})) return;`;
      const wrong = right.includes('<') ? right.replace('<', '<=') : right.replace('(', '(!');
      return position === 0
        ? [position + 1, 'off-by-one', 'bug', right, wrong]
        : [position + 1, 'off-by-one', 'inverse', wrong, right];
    });
    return makeTask(`t${index}`, edits);
  });
}

describe('diffTokens', () => {
  it('marks each token with its side', () => {
    expect(diffTokens({ before: 'return a < b;', after: 'return a <= b;' })).toEqual([
      ' return',
      ' a',
      '-<',
      '+<=',
      ' b',
      ' ;',
    ]);
    expect(diffTokens({ before: '', after: "x('a b')" })).toEqual(['+x', '+(', "+'a b'", '+)']);
  });

  it('gives back both sides', () => {
    const before = 'const total = sum(items, 0) // start';
    const after = 'const count = sum(0, items)';
    const side = (mark: string): string =>
      diffTokens({ before, after })
        .filter((token) => token[0] === ' ' || token[0] === mark)
        .map((token) => token.slice(1))
        .join('');
    expect(side('-')).toBe(before.replace(/ (?!start)/g, ''));
    expect(side('+')).toBe(after.replaceAll(' ', ''));
  });
});

describe('the n-gram classifier', () => {
  const held = makeTasks(100, 2);

  it('finds the pattern in names it has never seen, and nothing without training', () => {
    const trained = scoreLines(trainNGramClassifier(makeTasks(400, 1), { seed: 1 }), held);
    expect(forcedChoice(trained).share).toBeGreaterThan(0.95);
    expect(forcedChoice(scoreLines(trainNGramClassifier([], { seed: 1 }), held)).share).toBeCloseTo(0.25, 12);
  });

  it('sees shapes where no token was seen before', () => {
    // A number that becomes a name is the bug, a name that becomes a number its inverse; every token is new.
    const makeShapes = (count: number, seed: number): Task[] => {
      const random = createRandom(seed);
      return Array.from({ length: count }, (_, index) => {
        const [name, number] = [`name${random.below(1e9)}`, String(random.below(1e9))];
        const edits: EditTuple[] = [
          [1, 'wrong-variable', 'bug', `= ${number}`, `= ${name}`],
          [2, 'wrong-variable', 'inverse', `= ${name}`, `= ${number}`],
        ];
        return makeTask(`shape${index}`, edits);
      });
    };
    const scores = scoreLines(trainNGramClassifier(makeShapes(100, 1), { seed: 1 }), makeShapes(100, 2));
    expect(forcedChoice(scores).share).toBe(1);
  });

  it('is the same for the same seed', () => {
    const train = (): unknown =>
      scoreLines(trainNGramClassifier(makeTasks(50, 1), { seed: 3 }), held).map(({ score }) => score);
    expect(train()).toEqual(train());
  });

  it('trains on three thousand tasks in seconds', () => {
    const tasks = makeTasks(3000, 5);
    const start = performance.now();
    trainNGramClassifier(tasks, { seed: 1 });
    expect(performance.now() - start).toBeLessThan(8000);
  });
});
