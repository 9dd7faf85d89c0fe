import { CommanderError } from 'commander';
import { describe, expect, it } from 'vitest';

import { aCount, aNumber, aSwitch, oneOf, optional, parseScriptOptions, someOf } from '../scripts/script-options.ts';

const face = {
  name: 'bench:thing',
  summary: 'Measures the thing.',
  options: {
    gib: aNumber(2, 'size in GiB'),
    blockSeconds: aCount(20, 'length of a block'),
    store: oneOf(['s3', 'folder'], 'folder', 'where'),
    only: someOf(['codec', 'journey'], 'parts'),
    seed: optional(aCount(1, 'seed', 99)),
    json: aSwitch('as JSON'),
  },
};

function refusal(...line: string[]): string {
  let text = '';
  expect(() => parseScriptOptions(face, line, { writeErr: (part) => (text += part) })).toThrow(CommanderError);
  return text;
}

describe('script options', () => {
  it('gives what was said, and the fallback of what was not', () => {
    expect(parseScriptOptions(face, [])).toEqual({
      gib: 2,
      blockSeconds: 20,
      store: 'folder',
      only: ['codec', 'journey'],
      seed: undefined,
      json: false,
      command: '',
    });
    expect(
      parseScriptOptions(face, '--gib 0.5 --block-seconds 3 --store s3 --only journey --seed 9 --json'.split(' ')),
    ).toMatchObject({ gib: 0.5, blockSeconds: 3, store: 's3', only: ['journey'], seed: 9, json: true });
  });

  it.each([
    ['--gib x', /--gib <number>.*'x' is invalid\. expected a number above 0\./],
    ['--gib 0', /a number above 0/],
    ['--block-seconds 1.5', /a whole number of 1 or more/],
    ['--seed 100', /a whole number from 1 to 99/],
    ['--store foo', /expected s3 or folder/],
    ['--only foo', /'foo' is invalid\. expected some of codec, journey/],
    ['--gibs 2', /unknown option '--gibs'[^]*--gib/],
    ['stray', /too many arguments/],
  ])('refuses %s in one sentence and names the help', (line, sentence) => {
    expect(refusal(...line.split(' '))).toMatch(sentence);
    expect(refusal(...line.split(' '))).toContain('npm run bench:thing -- --help');
  });

  it('wants one of the commands where there are some', () => {
    const withCommands = { ...face, commands: ['start', 'stop'] };
    const silent = { writeErr: () => undefined };
    expect(parseScriptOptions(withCommands, ['start', '--gib', '1'])).toMatchObject({ command: 'start', gib: 1 });
    expect(() => parseScriptOptions(withCommands, ['restart'], silent)).toThrow(CommanderError);
    expect(() => parseScriptOptions(withCommands, [], silent)).toThrow(CommanderError);
  });

  it('shows every option with its default', () => {
    let help = '';
    expect(() => parseScriptOptions(face, ['--help'], { writeOut: (text) => (help += text) })).toThrow(CommanderError);
    expect(help).toMatch(
      /Usage: npm run bench:thing -- \[options\][^]*--block-seconds <number>\s+length of a block \(default: 20\)/,
    );
  });
});
