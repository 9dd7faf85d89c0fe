import { expect, test } from 'vitest';

import { createProgress, formatDuration } from './progress.ts';

function record(stream: { isTTY?: boolean; columns?: number }): {
  written: string[];
  tick: (ms: number) => void;
  progress: ReturnType<typeof createProgress>;
} {
  const written: string[] = [];
  let now = 0;
  const progress = createProgress({ stream: { ...stream, write: (text) => written.push(text) }, now: () => now });
  return { written, tick: (ms) => (now += ms), progress };
}

test('in a pipe, lines are plain, seldom, and the last one always comes', () => {
  const { written, tick, progress } = record({});
  progress.phase('sampling');
  for (let done = 1; done <= 40; done++) {
    tick(500);
    progress.update(done, 40, 'tasks');
  }
  progress.end();
  expect(written).toEqual(['sampling\n', '  1/40 tasks\n', '  21/40 tasks, 10s left\n', '  40/40 tasks\n']);
});

test('what was done before a resumption says nothing of the time left', () => {
  const { written, tick, progress } = record({});
  progress.phase('training', 20);
  tick(10_000);
  progress.update(21, 60, '');
  progress.end();
  expect(written).toEqual(['training\n', '  21/60, 6m30s left\n']);
});

test('on a terminal one line is redrawn, cut to the width, and gives way to lines that stay', () => {
  const { written, tick, progress } = record({ isTTY: true, columns: 20 });
  progress.phase('training');
  tick(5000);
  progress.update(1, 13, 'reward 0.300');
  progress.note('a note');
  progress.update(2, 13, '');
  progress.end();
  expect(written).toEqual([
    'training\n',
    '  1/13 reward 0.300',
    '\r\u001b[2K',
    'a note\n',
    '  2/13, 28s left',
    '\r\u001b[2K',
  ]);
});

test('durations read as people say them', () => {
  expect([0, 59_400, 75_000, 3_600_000, 5_400_000].map(formatDuration)).toEqual([
    '0s',
    '59s',
    '1m15s',
    '1h00m',
    '1h30m',
  ]);
});
