/** The chaos test's checker itself: an honest record passes, and each doctored one breaks exactly the invariant it is about. */
import { describe, expect, it } from 'vitest';

import { createFaultPlan, describeFault } from '../bench/chaos-sync/fault-plan.ts';
import type { FleetRecord } from '../bench/chaos-sync/fleet-record.ts';
import { findBreaches } from '../bench/chaos-sync/invariants.ts';
import { perturbedWeights } from '../bench/chaos-sync/perturbed-weights.ts';
import { parseLog } from '../examples/three-clusters/event-log.ts';

type Line = Record<string, unknown>;

const publisher = (version: number, more: Line = {}): Line => ({
  service: 'publisher',
  id: 'publisher',
  event: 'weights-published',
  version,
  imageChecksum: `sum${version}`,
  ...more,
});
const start = (version: number, more: Line = {}): Line => ({
  service: 'replica',
  id: 'replica-1',
  event: 'replica-start',
  bootId: 'boot-1',
  version,
  imageChecksum: `sum${version}`,
  ...more,
});
const commit = (from: number, version: number, more: Line = {}): Line => ({
  service: 'replica',
  id: 'replica-1',
  event: 'weights-committed',
  from,
  version,
  imageChecksum: `sum${version}`,
  servedChecksum: `sum${version}`,
  ...more,
});
const client = (event: string, more: Line = {}): Line => ({
  service: 'client',
  id: 'client',
  event,
  request: 'request-1',
  ...more,
});
const accepted = (more: Line = {}): Line =>
  client('request-accepted', {
    tokens: [5, 6, 7],
    streamed: [5, 6, 7],
    versions: [
      { version: 1, start: 0, end: 2 },
      { version: 2, start: 2, end: 3 },
    ],
    ...more,
  });

interface Story {
  readonly publisher?: readonly Line[];
  readonly replica?: readonly Line[];
  readonly client?: readonly Line[];
  readonly record?: Partial<FleetRecord>;
}

function recordOf(story: Story = {}): FleetRecord {
  const files = {
    'publisher.jsonl': story.publisher ?? [publisher(1), publisher(2)],
    'replica-1.jsonl': story.replica ?? [start(0), commit(0, 2), start(1, { bootId: 'boot-2' }), commit(1, 2)],
    'client.jsonl': story.client ?? [
      client('request-open'),
      accepted(),
      client('request-open', { request: 'request-2' }),
      client('request-dropped', { request: 'request-2', code: 'no-replica' }),
    ],
  };
  return {
    lines: Object.entries(files).flatMap(([file, lines]) =>
      parseLog(file, lines.map((line) => `${JSON.stringify(line)}\n`).join('')),
    ),
    bufferIds: ['request-1'],
    trueChecksums: new Map([0, 1, 2].map((version) => [version, new Set([`sum${version}`])])),
    replayed: [{ request: 'request-1', outcome: 'equal' }],
    convergence: {
      boundMs: 10_000,
      tookMs: 4000,
      target: 2,
      replicas: [{ id: 'replica-1', version: 2, state: 'serving' }],
    },
    ...story.record,
  };
}

const broken = (story: Story): string[] => [
  ...new Set(findBreaches(recordOf(story)).map(({ invariant }) => invariant)),
];

describe('an honest record', () => {
  it('breaks nothing, a version that went back with a new boot included', () => {
    expect(findBreaches(recordOf())).toEqual([]);
  });
});

describe('true-bytes is broken by', () => {
  it.each<[string, Story]>([
    [
      'a commit whose bytes are not those of its version',
      { replica: [start(0), commit(0, 2, { imageChecksum: 'sum1' })] },
    ],
    [
      'an engine that serves other bytes than were staged',
      { replica: [start(0), commit(0, 2, { servedChecksum: 'x' })] },
    ],
    ['a boot from a spoilt folder', { replica: [start(1, { imageChecksum: 'spoilt' })] }],
    ['a commit without a checksum', { replica: [start(0), commit(0, 2, { imageChecksum: undefined })] }],
    ['a version that nobody published', { replica: [start(0), commit(0, 3)] }],
    ['a publisher that published other bytes than it said', { publisher: [publisher(1, { imageChecksum: 'x' })] }],
    [
      'a reply that its versions do not give',
      {
        record: {
          replayed: [{ request: 'request-1', outcome: 'different', detail: 'position 1 is token 6, drawn again 9' }],
        },
      },
    ],
  ])('%s', (_what, story) => {
    expect(broken(story)).toEqual(['true-bytes']);
  });

  it('shows the line, with its file and number', () => {
    const [breach] = findBreaches(recordOf({ replica: [start(0), commit(0, 2, { imageChecksum: 'sum1' })] }));
    expect(breach?.lines.map(({ file, line }) => `${file}:${line}`)).toEqual(['replica-1.jsonl:2']);
    expect(breach?.sentence).toBe('replica replica-1 has imageChecksum sum1 for version 2, whose bytes have sum2');
  });
});

describe('never-back is broken by', () => {
  it.each<[string, Story]>([
    ['a commit of an older version', { replica: [start(2), commit(2, 1)] }],
    ['a commit of the same version again', { replica: [start(2), commit(2, 2)] }],
    ['a commit that leaves a version which was not served', { replica: [start(0), commit(1, 2)] }],
    ['a commit before the start', { replica: [commit(0, 2)] }],
    [
      'a reply that goes on with an older version',
      {
        client: [
          client('request-open'),
          accepted({
            versions: [
              { version: 2, start: 0, end: 2 },
              { version: 1, start: 2, end: 3 },
            ],
          }),
        ],
      },
    ],
    [
      'a reply with a token of no version',
      { client: [client('request-open'), accepted({ versions: [{ version: 1, start: 0, end: 2 }] })] },
    ],
    [
      'a reply with a hole between versions',
      {
        client: [
          client('request-open'),
          accepted({
            versions: [
              { version: 1, start: 0, end: 1 },
              { version: 2, start: 2, end: 3 },
            ],
          }),
        ],
      },
    ],
  ])('%s', (_what, story) => {
    expect(broken(story)).toEqual(['never-back']);
  });
});

describe('exactly-once is broken by', () => {
  const openAndAccepted = [client('request-open'), accepted()];
  it.each<[string, Story]>([
    ['a rollout that the buffer lost', { record: { bufferIds: [] } }],
    ['a rollout that the buffer holds twice', { record: { bufferIds: ['request-1', 'request-1'] } }],
    ['a rollout that nobody asked for', { record: { bufferIds: ['request-1', 'request-9'] } }],
    ['a dropped rollout in the buffer', { record: { bufferIds: ['request-1', 'request-2'] } }],
    ['a request that never ended', { client: [...openAndAccepted, client('request-open', { request: 'request-3' })] }],
    ['a request that ended twice', { client: [...openAndAccepted, client('request-dropped')] }],
    ['a token that the stream told twice', { client: [client('request-open'), accepted({ streamed: [5, 6, 6, 7] })] }],
    ['a token that the stream left out', { client: [client('request-open'), accepted({ streamed: [5, 7] })] }],
  ])('%s', (_what, story) => {
    expect(broken(story)).toEqual(['exactly-once']);
  });
});

describe('one-winner is broken by', () => {
  it('two publishers that both made a version visible', () => {
    expect(broken({ publisher: [publisher(1), publisher(2), publisher(2, { id: 'rival' })] })).toEqual(['one-winner']);
  });
});

describe('converges is broken by', () => {
  const convergence = recordOf().convergence;
  it.each<[string, FleetRecord['convergence']]>([
    [
      'a replica that stays behind',
      { ...convergence, tookMs: undefined, replicas: [{ id: 'replica-1', version: 1, state: 'serving' }] },
    ],
    [
      'a replica that is not there',
      { ...convergence, tookMs: undefined, replicas: [{ id: 'replica-1', version: undefined, state: 'down' }] },
    ],
    ['a fleet that takes too long', { ...convergence, tookMs: 10_001 }],
  ])('%s', (_what, changed) => {
    expect(broken({ record: { convergence: changed } })).toEqual(['converges']);
  });
});

describe('a fault plan', () => {
  const options = {
    seed: 7,
    seconds: 60,
    targets: { replica: ['a-1', 'a-2'], controller: ['a'], router: ['router'], publisher: ['publisher'] },
    smallDisks: ['a-1'],
    hasStoreRelay: true,
  };

  it('is the same for the same seed, and another for another', () => {
    expect(createFaultPlan(options)).toEqual(createFaultPlan(options));
    expect(createFaultPlan(options)).not.toEqual(createFaultPlan({ ...options, seed: 8 }));
  });

  it('has every kind, kills every kind of service, and is over when it says', () => {
    const plan = createFaultPlan(options);
    expect(new Set(plan.map(({ kind }) => kind)).size).toBe(11);
    expect(new Set(plan.flatMap((fault) => (fault.kind === 'kill' ? [fault.service] : []))).size).toBe(4);
    for (const fault of plan) {
      expect(fault.atMs + ('forMs' in fault ? fault.forMs : 0)).toBeLessThanOrEqual(60_000);
      expect(describeFault(fault)).not.toBe('');
    }
  });

  it('leaves out what the fleet cannot suffer', () => {
    const kinds = createFaultPlan({ ...options, smallDisks: [], hasStoreRelay: false }).map(({ kind }) => kind);
    for (const kind of ['full-disk', 'flipped-reads', 'store-errors', 'slow-link']) expect(kinds).not.toContain(kind);
  });
});

describe('perturbed weights', () => {
  const boot = new Map([
    ['w', new Uint8Array(Uint16Array.from({ length: 20_000 }, (_, at) => 0x3c00 + (at % 700)).buffer)],
  ]);

  it('follow from seed and version alone, and move about the share that is asked for, by one unit', () => {
    const one = perturbedWeights(boot, { seed: 1, version: 1, share: 0.01 });
    expect(one).toEqual(perturbedWeights(boot, { seed: 1, version: 1, share: 0.01 }));
    expect(one).not.toEqual(perturbedWeights(boot, { seed: 1, version: 2, share: 0.01 }));
    expect(one).not.toEqual(perturbedWeights(boot, { seed: 2, version: 1, share: 0.01 }));
    const [before, after] = [boot, one].map(
      (weights) => new Uint16Array(weights.get('w')?.buffer ?? new ArrayBuffer()),
    );
    const moves = [...(before ?? [])].map((bits, at) => Math.abs(bits - (after?.[at] ?? 0)));
    expect(Math.max(...moves)).toBe(1);
    const changed = moves.filter((move) => move > 0).length;
    expect(changed).toBeGreaterThan(140);
    expect(changed).toBeLessThan(260);
  });
});
