/**
 * What changed between two values as JSON has them, in words, key by key: for messages that refuse to go on under changed
 * settings. Keys come in their order, first those of the value before, then the new ones.
 */

/**
 * One phrase a difference, such as `schedule.steps was 10, is now 20`, with `path` before the keys; empty when the values are
 * the same. Lists of different lengths are one difference, others are compared place by place. A key that one side lacks
 * is `undefined` there.
 */
export function jsonDifferences(before: unknown, after: unknown, path = ''): string[] {
  if (Array.isArray(before) && Array.isArray(after) && before.length !== after.length)
    return [`${path} had ${before.length} entries, now has ${after.length}`];
  if (isKeyed(before) && isKeyed(after) && Array.isArray(before) === Array.isArray(after))
    return [...new Set([...Object.keys(before), ...Object.keys(after)])].flatMap((key) =>
      jsonDifferences(before[key], after[key], path === '' ? key : `${path}.${key}`),
    );
  const [was, is] = [before, after].map((value) => JSON.stringify(value));
  return was === is ? [] : [`${path} was ${was}, is now ${is}`];
}

/** Arrays among them: their keys are positions. */
function isKeyed(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null;
}
