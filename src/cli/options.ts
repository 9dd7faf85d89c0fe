/** Command-line values as numbers and words, refused with the option's name when they are not. */
import { HoneError } from '../domain/errors.ts';

export function integerOption(name: string, value: unknown, range: { min: number; max?: number }): number {
  const number = typeof value === 'string' && /^-?\d+$/u.test(value.trim()) ? Number(value) : Number.NaN;
  const { min, max = Number.MAX_SAFE_INTEGER } = range;
  if (Number.isNaN(number) || number < min || number > max)
    throw new HoneError(
      'invalid-config',
      `${name} is ${String(value)}, not a whole number from ${min}${range.max === undefined ? ' up' : ` to ${max}`}.`,
      { cure: `Give a number such as ${name} ${min}.` },
    );
  return number;
}

export function numberOption(name: string, value: unknown, range: { above: number; max: number }): number {
  const number = typeof value === 'string' && value.trim() !== '' ? Number(value) : Number.NaN;
  if (!(number > range.above && number <= range.max))
    throw new HoneError(
      'invalid-config',
      `${name} is ${String(value)}, not a number above ${range.above} and at most ${range.max}.`,
      { cure: `Give a number such as ${name} ${range.max}.` },
    );
  return number;
}

/** A list such as 0,0.25,1: at least one number, each from `min` to `max`. */
export function numberListOption(name: string, value: unknown, range: { min: number; max: number }): number[] {
  const words = typeof value === 'string' ? value.split(',') : [];
  const numbers = words.map((word) => (word.trim() === '' ? Number.NaN : Number(word)));
  const wrong = numbers.findIndex((number) => !(number >= range.min && number <= range.max));
  if (numbers.length === 0 || wrong >= 0)
    throw new HoneError(
      'invalid-config',
      `${name} is ${String(value)}, not a list of numbers from ${range.min} to ${range.max}${words.length > 1 ? `: ${words[wrong]?.trim() || 'an empty entry'} is none` : ''}.`,
      { cure: `Give numbers with commas between them, such as ${name} ${range.min},${range.max}.` },
    );
  return numbers;
}

/** Refuses options that nothing would read; `given` holds those of the command line by their names. */
export function refuseUnread(given: readonly string[], why: string): void {
  if (given.length === 0) return;
  throw new HoneError('invalid-config', `${given.join(' and ')} would not be read: ${why}.`, {
    cure: `Leave ${given.length === 1 ? 'it' : 'them'} out.`,
  });
}

export function choiceOption<T extends string>(name: string, value: unknown, choices: readonly T[]): T {
  const found = choices.find((choice) => choice === value);
  if (found === undefined)
    throw new HoneError('invalid-config', `${name} is ${String(value)}, not one of ${choices.join(', ')}.`, {
      cure: `Use ${name} ${choices[0]}.`,
    });
  return found;
}
