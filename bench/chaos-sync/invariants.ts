/**
 * What must hold of a fleet whatever happens to it, checked over the record of one run. Pure: the same record gives the same
 * verdict. Each invariant has a name, and a breach comes with a sentence and the lines that show it.
 */
import { numberIn, textIn, type LogLine } from '../../examples/three-clusters/event-log.ts';
import { idsIn, spansIn, type FleetRecord } from './fleet-record.ts';

export const INVARIANTS = {
  'true-bytes': 'every token was sampled from the bytes of the version that it claims',
  'never-back': 'versions never go back, in a replica or in a reply',
  'exactly-once': 'no accepted rollout is lost or duplicated',
  'one-winner': 'one publisher makes a version visible, and no other',
  converges: 'all replicas serve the newest version soon after the faults stop',
} as const;

export type InvariantName = keyof typeof INVARIANTS;

export interface Breach {
  readonly invariant: InvariantName;
  readonly sentence: string;
  readonly lines: readonly LogLine[];
}

export function findBreaches(record: FleetRecord): Breach[] {
  return [
    ...untrueBytes(record),
    ...versionsThatWentBack(record),
    ...rolloutsNotOnce(record),
    ...severalWinners(record),
    ...notConverged(record),
  ];
}

/** A version's checksum wherever a service says that it holds or serves it, and the replays of finished generations. */
function untrueBytes({ lines, trueChecksums, replayed }: FleetRecord): Breach[] {
  const breaches: Breach[] = [];
  for (const line of lines) {
    if (!['replica-start', 'weights-committed', 'weights-published'].includes(line.event)) continue;
    const version = numberIn(line, 'version');
    const truth = version === undefined ? undefined : trueChecksums.get(version);
    for (const key of ['imageChecksum', 'servedChecksum']) {
      const checksum = textIn(line, key);
      if (checksum === undefined && key === 'servedChecksum') continue;
      if (checksum !== undefined && truth?.has(checksum) === true) continue;
      breaches.push({
        invariant: 'true-bytes',
        sentence: `${line.service} ${line.id} has ${key} ${checksum ?? 'missing'} for version ${version ?? 'missing'}, whose bytes have ${truth === undefined ? 'never been published' : [...truth].join(' or ')}`,
        lines: [line],
      });
    }
  }
  for (const { request, outcome, detail } of replayed)
    if (outcome === 'different')
      breaches.push({
        invariant: 'true-bytes',
        sentence: `request ${request}, sampled again from the published bytes, is another: ${detail ?? 'no detail'}`,
        lines: ofRequest(lines, request),
      });
  return breaches;
}

function versionsThatWentBack({ lines }: FleetRecord): Breach[] {
  const breaches: Breach[] = [];
  const last = new Map<string, { boot: string; version: number; line: LogLine }>();
  const back = (sentence: string, ...shown: LogLine[]): void =>
    void breaches.push({ invariant: 'never-back', sentence, lines: shown });
  for (const line of lines) {
    const version = numberIn(line, 'version');
    switch (line.event) {
      case 'replica-start':
        if (version !== undefined) last.set(line.id, { boot: textIn(line, 'bootId') ?? '', version, line });
        break;
      case 'weights-committed': {
        const before = last.get(line.id);
        const from = numberIn(line, 'from');
        if (version === undefined || before === undefined) {
          back(`replica ${line.id} committed a version before it said which one it started with`, line);
          break;
        }
        if (version <= before.version)
          back(`replica ${line.id} went from version ${before.version} to ${version}`, before.line, line);
        else if (from !== before.version)
          back(
            `replica ${line.id} says that it left version ${from ?? 'none'}, it served ${before.version}`,
            before.line,
            line,
          );
        last.set(line.id, { ...before, version, line });
        break;
      }
      case 'request-accepted': {
        const problem = spanProblem(spansIn(line), idsIn(line, 'tokens').length);
        if (problem !== undefined) back(`request ${textIn(line, 'request') ?? ''} has spans that ${problem}`, line);
        break;
      }
      default:
    }
  }
  return breaches;
}

/** Spans must tile the reply without a hole, each of a newer version than the one before. */
function spanProblem(
  spans: readonly { version: number; start: number; end: number }[],
  tokens: number,
): string | undefined {
  let place = 0;
  let newest = -1;
  for (const { version, start, end } of spans) {
    if (start !== place || end <= start) return `leave position ${place} to nobody`;
    if (version < newest) return `go back from version ${newest} to ${version} at position ${start}`;
    if (version === newest) return `name version ${version} twice in a row`;
    place = end;
    newest = version;
  }
  return place === tokens ? undefined : `cover ${place} of ${tokens} tokens`;
}

function rolloutsNotOnce({ lines, bufferIds }: FleetRecord): Breach[] {
  const breaches: Breach[] = [];
  const wrong = (sentence: string, shown: readonly LogLine[]): void =>
    void breaches.push({ invariant: 'exactly-once', sentence, lines: shown });
  const requests = Map.groupBy(
    lines.filter(({ event }) => ['request-open', 'request-accepted', 'request-dropped'].includes(event)),
    (line) => textIn(line, 'request') ?? '',
  );
  const stored = Map.groupBy(bufferIds, (id) => id);
  for (const [request, shown] of requests) {
    const opened = shown.filter(({ event }) => event === 'request-open').length;
    const accepted = shown.filter(({ event }) => event === 'request-accepted').length;
    const ended = shown.length - opened;
    const copies = stored.get(request)?.length ?? 0;
    if (opened !== 1) wrong(`request ${request} was opened ${opened} times`, shown);
    if (ended !== 1) wrong(`request ${request} ended ${ended} times`, shown);
    if (copies !== accepted)
      wrong(`request ${request} was accepted ${accepted} times, and the buffer holds it ${copies} times`, shown);
  }
  for (const [id] of stored)
    if (!requests.has(id)) wrong(`the buffer holds ${id}, which nobody asked for`, ofRequest(lines, id));
  for (const line of lines) {
    if (line.event !== 'request-accepted') continue;
    const tokens = idsIn(line, 'tokens');
    const streamed = idsIn(line, 'streamed');
    if (tokens.length !== streamed.length || tokens.some((id, place) => id !== streamed[place]))
      wrong(
        `request ${textIn(line, 'request') ?? ''} was told ${streamed.length} tokens while it was sampled and got ${tokens.length} at the end, not the same ones`,
        [line],
      );
  }
  return breaches;
}

function severalWinners({ lines }: FleetRecord): Breach[] {
  const published = Map.groupBy(
    lines.filter(({ event }) => event === 'weights-published'),
    (line) => numberIn(line, 'version') ?? -1,
  );
  return [...published]
    .filter(([, winners]) => winners.length > 1)
    .map(([version, winners]) => ({
      invariant: 'one-winner',
      sentence: `version ${version} was made visible by ${winners.length} publishers, ${winners.map(({ id }) => id).join(' and ')}`,
      lines: winners,
    }));
}

function notConverged({ lines, convergence }: FleetRecord): Breach[] {
  const { boundMs, tookMs, target, replicas } = convergence;
  if (tookMs !== undefined && tookMs <= boundMs) return [];
  const behind = replicas.filter(({ version, state }) => (version ?? -1) < target || state !== 'serving');
  const names = behind.map(({ id, version, state }) => `${id} (${state}, version ${version ?? 'unknown'})`);
  return [
    {
      invariant: 'converges',
      sentence:
        tookMs === undefined
          ? `${boundMs / 1000} s after the faults stopped, these did not serve version ${target}: ${names.join(', ') || 'none, but a service was down'}`
          : `it took ${(tookMs / 1000).toFixed(1)} s after the faults stopped until all served version ${target}, the bound is ${boundMs / 1000} s`,
      lines: behind.flatMap(({ id }) => lines.filter((line) => line.id === id).slice(-3)),
    },
  ];
}

function ofRequest(lines: readonly LogLine[], request: string): LogLine[] {
  return lines.filter((line) => textIn(line, 'request') === request);
}
