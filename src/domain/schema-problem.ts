/**
 * What a schema says of a value, as the end of a sentence that begins with the key: the value that was found and what it must
 * be, which is the cure. A message that a schema gives itself is kept.
 */
import type { z } from 'zod';

/** Beginnings of the library's own messages, which hold neither the value nor a cure. */
const PLAIN = /^(?:Too (?:big|small)|Invalid (?:input|option|discriminator))/u;

/** For example "is 1.5, must be at most 1". `input` is the whole value that the schema was given. */
export function schemaProblem(issue: z.core.$ZodIssue, input: unknown): string {
  const found = valueAt(input, issue.path);
  const is = found === undefined ? 'is missing' : `is ${shown(found)}`;
  // What a key of a record must be lies one level deeper.
  if (issue.code === 'invalid_key') return issue.issues[0]?.message ?? issue.message;
  if (issue.code === 'unrecognized_keys') return `has ${issue.keys.join(', ')}, which nothing reads`;
  if (!PLAIN.test(issue.message)) return issue.message.startsWith('must ') ? `${is}, ${issue.message}` : issue.message;
  return `${is}, must be ${wanted(issue)}`;
}

function wanted(issue: z.core.$ZodIssue): string {
  switch (issue.code) {
    case 'too_small':
      return bound(issue.origin, { limit: issue.minimum, words: issue.inclusive === true ? 'at least' : 'above' });
    case 'too_big':
      return bound(issue.origin, { limit: issue.maximum, words: issue.inclusive === true ? 'at most' : 'below' });
    case 'invalid_value':
      return oneOf(issue.values.map((value) => shown(value)));
    case 'invalid_type':
      return issue.expected === 'int'
        ? 'a whole number'
        : `${/^[aeo]/u.test(issue.expected) ? 'an' : 'a'} ${issue.expected}`;
    case 'invalid_union': {
      if ('options' in issue && Array.isArray(issue.options)) return oneOf(issue.options.map((value) => shown(value)));
      const choices = issue.errors.flatMap(([first]) => (first === undefined ? [] : [wanted(first)]));
      return oneOf([...new Set(choices)]);
    }
    default:
      return issue.message;
  }
}

function bound(origin: string, { limit, words }: { limit: number | bigint; words: string }): string {
  if (origin === 'array') return `a list of ${words} ${limit}`;
  if (origin === 'string') return `a text of ${words} ${limit} characters`;
  return `${words} ${limit}`;
}

function oneOf(choices: readonly string[]): string {
  const last = choices.at(-1) ?? 'something else';
  return choices.length < 2 ? last : `${choices.slice(0, -1).join(', ')} or ${last}`;
}

function valueAt(input: unknown, path: readonly PropertyKey[]): unknown {
  let value = input;
  for (const key of path) {
    if (typeof value !== 'object' || value === null) return undefined;
    // Any key may be read of an object; what is not there is undefined.
    value = (value as Readonly<Record<PropertyKey, unknown>>)[key];
  }
  return value;
}

/** Short: a whole object or list would drown the sentence. */
function shown(value: unknown): string {
  if (Array.isArray(value)) return value.length === 0 ? 'an empty list' : `a list of ${value.length}`;
  if (typeof value === 'object' && value !== null) return 'an object';
  return typeof value === 'string' ? JSON.stringify(value) : String(value);
}
