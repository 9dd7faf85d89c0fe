/**
 * Which directory of a store a person means by `7`, `v7`, `weight_v000007` or `my-run/weight_v000007-r1`.
 * Invariant: an ambiguous or unknown version is an error that lists what there is, never a guess.
 */
import { HoneError } from '../domain/errors.ts';
import { formatIdentity, type VersionIdentity } from './version-directory.ts';
import { visibleVersions, type ListedVersion, type StoreListing } from './version-listing.ts';

/** `text` undefined = the newest version, which the pointer names. */
export function chooseVersion(
  listing: StoreListing,
  { latest, text, location }: { latest: VersionIdentity | undefined; text: string | undefined; location: string },
): ListedVersion {
  if (text === undefined) {
    if (latest === undefined) throw nothingPublished(location);
    return byDirectory(listing, formatIdentity(latest), location);
  }
  const match = /^(?:([A-Za-z0-9_][A-Za-z0-9._-]*)\/)?(?:weight_)?v?(\d{1,15})(?:-r(\d{1,6}))?$/.exec(text);
  if (match === null)
    throw new HoneError('invalid-config', `${JSON.stringify(text)} is not a version.`, {
      cure: 'Write it as 7, v7 or weight_v000007; with the run before it, as in my-run/v7, if the store has several.',
    });
  const [, run, number, attempt] = match;
  const found = listing.versions.filter(
    ({ identity }) =>
      identity.version === Number(number) &&
      (run === undefined || identity.runId === run) &&
      (attempt === undefined || identity.attempt === Number(attempt)),
  );
  if (found.length === 0) throw unknown(listing, text, location);
  if (attempt !== undefined && found.length === 1) return found[0] ?? throwUnreachable();
  const visible = [...Map.groupBy(listing.versions, ({ identity }) => identity.runId)]
    .flatMap(([runId, versions]) => visibleVersions(versions, runId === latest?.runId ? latest : undefined))
    .filter((version) => found.includes(version));
  // Of several runs the one that the pointer is with.
  const own = visible.filter(({ identity }) => identity.runId === latest?.runId);
  const chosen = own.length > 0 ? own : visible;
  const [first, second] = chosen;
  if (first === undefined)
    throw new HoneError(
      'store-failed',
      `Version ${text} of ${location} was never published: it has no index, or another attempt took its place.`,
      {
        cure: `Name one attempt, such as ${found[0]?.directory}.`,
      },
    );
  if (second !== undefined)
    throw new HoneError(
      'invalid-config',
      `Version ${text} may be ${chosen.map(({ directory }) => directory).join(' or ')}.`,
      {
        cure: 'Write the run, or the attempt, as it stands there.',
      },
    );
  return first;
}

export function nothingPublished(location: string): HoneError {
  return new HoneError('store-failed', `Nothing has been published to ${location}.`, {
    cure: 'Name a version that hone weights ls shows, or wait for the first.',
  });
}

function byDirectory({ versions }: StoreListing, directory: string, location: string): ListedVersion {
  const found = versions.find((version) => version.directory === directory);
  if (found !== undefined) return found;
  throw new HoneError('store-failed', `The pointer of ${location} names ${directory}, which is not there.`, {
    cure: 'Restore it from a copy, or let the run publish again.',
  });
}

function unknown({ versions }: StoreListing, text: string, location: string): HoneError {
  const numbers = versions.map(({ identity }) => identity.version).toSorted((left, right) => left - right);
  const range = numbers.length === 0 ? 'none' : `${numbers.length}, from ${numbers[0]} to ${numbers.at(-1)}`;
  return new HoneError('store-failed', `${location} has no version ${text}; it has ${range}.`, {
    cure: 'Name one that hone weights ls shows.',
  });
}

function throwUnreachable(): never {
  throw new RangeError('one of one is there');
}
