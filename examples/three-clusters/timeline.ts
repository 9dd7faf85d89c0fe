/**
 * One version's way through the fleet, from the event logs: when it was published and, in each cluster, when it was seen, fetched,
 * received, staged and committed, all in milliseconds after it was published. Pure. A cluster that went straight to a newer version
 * says so, instead of times that are not its own.
 */
import { numberIn, textIn, type LogLine } from './event-log.ts';

export interface ClusterTimes {
  readonly cluster: string;
  /** Its controller read the pointer. */
  readonly seenMs: number | undefined;
  /** Its controller had every object. */
  readonly fetchedMs: number | undefined;
  /** The last replica had every object, had staged it, and served it. */
  readonly receivedMs: number | undefined;
  readonly stagedMs: number | undefined;
  readonly committedMs: number | undefined;
  /** The longest. */
  readonly pauseMs: number | undefined;
  readonly replicas: number;
  /** Replicas that serve a newer version and never served this one. */
  readonly overtaken: number;
}

export interface VersionTimes {
  readonly version: number;
  readonly publishedAtMs: number;
  readonly bytes: number | undefined;
  readonly isAnchor: boolean;
  readonly clusters: readonly ClusterTimes[];
  /** Every replica serves it or a newer one. */
  readonly isEverywhere: boolean;
}

/** `clusters`: the ids of the replicas, by cluster; a controller's id is its cluster's name. */
export function versionTimes(
  lines: readonly LogLine[],
  clusters: ReadonlyMap<string, readonly string[]>,
): VersionTimes[] {
  const commits = Map.groupBy(
    lines.filter(({ event }) => event === 'weights-committed'),
    ({ id }) => id,
  );
  const published = lines.filter(({ event }) => event === 'weights-published');
  return published.flatMap((line) => {
    const version = numberIn(line, 'version');
    const publishedAtMs = numberIn(line, 'time');
    if (version === undefined || publishedAtMs === undefined) return [];
    const all = [...clusters].map(([cluster, replicas]) =>
      clusterTimes(lines, { version, publishedAtMs, cluster, replicas, commits }),
    );
    return [
      {
        version,
        publishedAtMs,
        bytes: numberIn(line, 'bytes'),
        isAnchor: line.fields['anchor'] === true,
        clusters: all,
        isEverywhere: [...clusters.values()]
          .flat()
          .every((id) => (commits.get(id) ?? []).some((commit) => (numberIn(commit, 'version') ?? -1) >= version)),
      },
    ];
  });
}

interface ClusterQuestion {
  readonly version: number;
  readonly publishedAtMs: number;
  readonly cluster: string;
  readonly replicas: readonly string[];
  readonly commits: ReadonlyMap<string, readonly LogLine[]>;
}

function clusterTimes(lines: readonly LogLine[], question: ClusterQuestion): ClusterTimes {
  const { version, publishedAtMs, cluster, replicas, commits } = question;
  const after = (line: LogLine | undefined): number | undefined => {
    const time = line === undefined ? undefined : numberIn(line, 'time');
    return time === undefined ? undefined : time - publishedAtMs;
  };
  const ofController = (event: string): number | undefined =>
    after(lines.find((line) => line.id === cluster && line.event === event && namedVersion(line) === version));
  const own = replicas.flatMap((id) => (commits.get(id) ?? []).filter((line) => numberIn(line, 'version') === version));
  const overtaken = replicas.filter((id) => {
    const all = (commits.get(id) ?? []).map((line) => numberIn(line, 'version') ?? -1);
    return !all.includes(version) && all.some((other) => other > version);
  });
  const committed = own.map((line) => after(line) ?? Number.NaN);
  const pauses = own.map((line) => numberIn(line, 'pauseMs') ?? 0);
  const staged = committed.map((ms, index) => ms - (pauses[index] ?? 0));
  const received = staged.map((ms, index) => {
    const line = own[index];
    return ms - ((line === undefined ? undefined : numberIn(line, 'stageMs')) ?? 0);
  });
  return {
    cluster,
    seenMs: ofController('version-seen'),
    fetchedMs: ofController('version-fetched'),
    receivedMs: latest(received),
    stagedMs: latest(staged),
    committedMs: latest(committed),
    pauseMs: latest(pauses),
    replicas: replicas.length,
    overtaken: overtaken.length,
  };
}

/** Controllers name a version by its directory, such as `my-run/weight_v000007`. */
function namedVersion(line: LogLine): number | undefined {
  const directory = /\/weight_v(\d+)(?:-r\d+)?$/u.exec(textIn(line, 'version') ?? '');
  return directory === null ? numberIn(line, 'version') : Number(directory[1]);
}

function latest(times: readonly number[]): number | undefined {
  return times.length === 0 ? undefined : Math.max(...times);
}

const COLUMNS = [
  ['version', 7],
  ['cluster', 10],
  ['published', 12],
  ['seen', 9],
  ['fetched', 9],
  ['received', 9],
  ['staged', 9],
  ['committed', 11],
  ['pause', 9],
  ['size', 16],
] as const;

/** Columns of fixed widths: rows come one by one. */
function textRow(cells: readonly string[]): string {
  return COLUMNS.map(([, width], column) => {
    const cell = cells[column] ?? '';
    return column === 1 ? cell.padEnd(width) : cell.padStart(width);
  })
    .join('  ')
    .trimEnd();
}

export function timelineHead(): string {
  return textRow(COLUMNS.map(([head]) => head));
}

/** Rows of the table: one a cluster. Times are after the version was published, the clock time of which is in its first row. */
function timelineRows({ version, publishedAtMs, bytes, isAnchor, clusters }: VersionTimes): string[][] {
  return clusters.map((times, index) => {
    const isFirst = index === 0;
    const clock = new Date(publishedAtMs).toISOString().slice(11, 23);
    const size = bytes === undefined ? '' : `${(bytes / 1024).toFixed(0)} KiB${isAnchor ? ' (full)' : ''}`;
    const [staged, committed] = [times.stagedMs, times.committedMs].map(inMs);
    const note = times.overtaken === times.replicas ? 'overtaken' : `${times.overtaken} overtaken`;
    return [
      isFirst ? String(version) : '',
      times.cluster,
      isFirst ? clock : '',
      inMs(times.seenMs),
      inMs(times.fetchedMs),
      inMs(times.receivedMs),
      staged ?? '',
      times.overtaken === 0 ? (committed ?? '') : note,
      times.pauseMs === undefined ? '' : `${times.pauseMs.toFixed(1)} ms`,
      isFirst ? size : '',
    ];
  });
}

/** One version, a row a cluster. */
export function timelineText(version: VersionTimes): string {
  return timelineRows(version).map(textRow).join('\n');
}

function inMs(ms: number | undefined): string {
  return ms === undefined ? '-' : `${ms.toFixed(0)} ms`;
}
