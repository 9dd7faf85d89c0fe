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

/** `example` is a sensible value for the cure; one above the lower bound where it is left out. */
export function numberOption(
  name: string,
  value: unknown,
  range: { above: number; max: number; example?: number },
): number {
  const number = typeof value === 'string' && value.trim() !== '' ? Number(value) : Number.NaN;
  const { above, max, example = Math.min(above + 1, max) } = range;
  if (!(number > above && number <= max))
    throw new HoneError(
      'invalid-config',
      `${name} is ${String(value)}, not a number above ${above} and at most ${max}.`,
      { cure: `Give a number such as ${name} ${example}.` },
    );
  return number;
}

/** A list such as 0,0.25,1, ascending: at least one number, each from `min` to `max`, none twice. */
export function numberListOption(
  name: string,
  value: unknown,
  range: { min: number; max: number; example: string },
): number[] {
  const words = typeof value === 'string' ? value.split(',') : [];
  const numbers = words.map((word) => (word.trim() === '' ? Number.NaN : Number(word)));
  const wrong = numbers.findIndex((number) => !(number >= range.min && number <= range.max));
  if (numbers.length === 0 || wrong >= 0)
    throw new HoneError(
      'invalid-config',
      `${name} is ${String(value)}, not a list of numbers from ${range.min} to ${range.max}${words.length > 1 ? `: ${words[wrong]?.trim() || 'an empty entry'} is none` : ''}.`,
      { cure: `Give numbers with commas between them, such as ${name} ${range.example}.` },
    );
  const twice = numbers.find((number, index) => numbers.indexOf(number) < index);
  if (twice !== undefined)
    throw new HoneError('invalid-config', `${name} is ${String(value)}: it has ${twice} twice.`, {
      cure: 'Name each number once.',
    });
  return numbers.toSorted((left, right) => left - right);
}

/** The path of a file or folder; undefined where the option is left out. An empty one is no path. */
export function pathOption(name: string, value: unknown): string | undefined {
  if (value === undefined) return undefined;
  if (typeof value === 'string' && value.trim() !== '') return value;
  throw new HoneError('invalid-config', `${name} is empty, not a path.`, {
    cure: `Name a place after it, or leave ${name} out.`,
  });
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
