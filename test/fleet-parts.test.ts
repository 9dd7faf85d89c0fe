/** What examples and chaos runs start and spoil fleets with: processes that come back, links, clocks, disks, timelines. */
import { execFile, execFileSync, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { afterAll, describe, expect, it } from 'vitest';

import { CLOCK_FILE_VARIABLE } from '../bench/chaos-sync/clock-shift.ts';
import { filesBelow, mountSmallDisk, spoilFile } from '../bench/chaos-sync/disk-faults.ts';
import { FaultInjector } from '../bench/chaos-sync/fault-injector.ts';
import { parseLog } from '../examples/three-clusters/event-log.ts';
import { canMakeNamespaces, openLinks } from '../examples/three-clusters/link-shaping.ts';
import { ServiceProcess } from '../examples/three-clusters/service-process.ts';
import { timelineText, versionTimes } from '../examples/three-clusters/timeline.ts';

const directory = mkdtempSync(join(tmpdir(), 'hone-fleet-parts-'));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const CLOCK = fileURLToPath(new URL('../bench/chaos-sync/clock-shift.ts', import.meta.url));

describe('a service process', () => {
  const program = join(directory, 'service.mjs');
  writeFileSync(
    program,
    `console.log('starting');
     console.log(JSON.stringify({ service: 'test', id: String(process.pid) }));
     process.on('SIGTERM', () => process.argv[2] === 'stubborn' ? 0 : process.exit(0));
     if (process.argv[2] === 'broken') { console.error('no luck'); process.exit(3); }
     setInterval(() => 0, 1000);`,
  );
  const isAlive = (pid: number): boolean => {
    try {
      process.kill(pid, 0);
      return true;
    } catch {
      return false;
    }
  };
  const start = (name: string, more: object = {}): ServiceProcess =>
    new ServiceProcess({
      name,
      program,
      arguments: [],
      environment: {},
      errorFile: join(directory, `${name}.txt`),
      ...more,
    });

  it('says when it is ready, comes back after kill -9, and is gone after its stop', async () => {
    const service = start('phoenix', { restart: { afterMs: 1 } });
    const first = await service.ready();
    expect(Number(first.id)).toBe(service.pid);
    service.kill();
    while (service.starts < 2) await new Promise(setImmediate);
    const second = await service.ready();
    expect(second.id).not.toBe(first.id);
    expect(isAlive(Number(first.id))).toBe(false);
    await service.stop();
    expect(isAlive(Number(second.id))).toBe(false);
    await service.stop();
  });

  it('is forced to end when it does not end by itself', async () => {
    const service = start('stubborn', { arguments: ['stubborn'] });
    const { id } = await service.ready();
    await service.stop(1);
    expect(isAlive(Number(id))).toBe(false);
  });

  it('tells its last words when it ends and is not to come back', async () => {
    const service = start('broken', { arguments: ['broken'] });
    await service.ready().catch(() => undefined);
    while (service.pid !== undefined) await new Promise(setImmediate);
    await expect(service.ready()).rejects.toThrow(/broken ended \(exit 3\)\.\nno luck/u);
    await service.stop();
  });
});

describe('a shifted clock', () => {
  it('moves Date and leaves monotonic time alone', () => {
    const file = join(directory, 'clock');
    writeFileSync(file, '3600000');
    const script = join(directory, 'clock.mjs');
    writeFileSync(
      script,
      'console.log(JSON.stringify([Date.now(), +new Date(), new Date(5).getTime(), new Date() instanceof Date, performance.now()]));',
    );
    const before = Date.now();
    const { stdout } = spawnSync(process.execPath, ['--import', CLOCK, script], {
      encoding: 'utf8',
      env: { [CLOCK_FILE_VARIABLE]: file },
    });
    const after = Date.now();
    const [now, made, five, isDate, monotonic] = JSON.parse(stdout) as [number, number, number, boolean, number];
    for (const time of [now, made]) {
      expect(time).toBeGreaterThanOrEqual(before + 3_600_000);
      expect(time).toBeLessThanOrEqual(after + 3_600_000);
    }
    expect([five, isDate]).toEqual([5, true]);
    expect(monotonic).toBeLessThan(60_000);
  });
});

describe('a disk', () => {
  it('has a file changed in exactly one bit, or cut', () => {
    const folder = join(directory, 'disk');
    mkdirSync(join(folder, 'deep'), { recursive: true });
    expect(spoilFile(folder, { how: 'flip', draw: 7 })).toBeUndefined();
    const bytes = Buffer.alloc(1000, 0x55);
    writeFileSync(join(folder, 'deep', 'weights'), bytes);
    expect(spoilFile(folder, { how: 'flip', draw: 123_456 })).toContain('weights, bit 0');
    const flipped = readFileSync(join(folder, 'deep', 'weights'));
    const bits = [...flipped].reduce(
      (sum, byte, at) => sum + (byte ^ (bytes[at] ?? 0)).toString(2).replaceAll('0', '').length,
      0,
    );
    expect(bits).toBe(1);
    expect(spoilFile(folder, { how: 'cut', draw: 123_456 })).toMatch(/cut to \d+ of 1000 bytes/u);
    expect(readFileSync(join(folder, 'deep', 'weights')).byteLength).toBeLessThan(1000);
  });

  it.runIf(process.platform === 'linux' && process.getuid?.() === 0)('is filled to the last byte and freed', () => {
    const folder = join(directory, 'small');
    const disk = mountSmallDisk(folder, 1 << 20);
    expect(disk).toBeDefined();
    try {
      disk?.fill();
      expect(() => writeFileSync(join(folder, 'more'), Buffer.alloc(8192))).toThrow(/ENOSPC/u);
      expect(filesBelow(folder)).toEqual([]);
      disk?.free();
      writeFileSync(join(folder, 'more'), Buffer.alloc(8192));
    } finally {
      disk?.[Symbol.dispose]();
    }
    expect(filesBelow(folder)).toEqual([]);
  });
});

describe('a shaped link', () => {
  const kinds = [...(canMakeNamespaces() ? (['namespaces'] as const) : []), 'relay' as const];
  it.each(kinds)('by %s lets through what it is rated for, and leaves nothing', async (kind) => {
    const body = Buffer.alloc(1_000_000);
    const server = createServer((_request, response) => response.end(body)).listen(0, '127.0.0.1');
    await once(server, 'listening');
    // A listening TCP server's address is never a string or null.
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const seconds = async (megabitsPerSecond: number): Promise<number> => {
      await using links = await openLinks([{ name: 'test', megabitsPerSecond, delayMs: 0 }], { kind });
      const [link] = links.clusters;
      const inside = (await link?.expose(url)) ?? '';
      const fetching = `const t = performance.now(); fetch(${JSON.stringify(inside)}).then(async (r) => console.log((await r.arrayBuffer()).byteLength, performance.now() - t));`;
      const command = [...(link?.through ?? []), process.execPath, '--input-type=module', '-e', fetching];
      const { promise, resolve } = Promise.withResolvers<string>();
      execFile(command[0] ?? '', command.slice(1), (_error, stdout) => resolve(stdout));
      const [size, milliseconds] = (await promise).split(' ').map(Number);
      expect(size).toBe(1_000_000);
      return (milliseconds ?? 0) / 1000;
    };
    // 8 megabits at 16 a second take half a second, but for the burst at the start.
    expect(await seconds(16)).toBeGreaterThan(0.3);
    server.close();
    server.closeAllConnections();
    await once(server, 'close');
    if (kind === 'namespaces')
      expect(execFileSync('ip', ['netns', 'list'], { encoding: 'utf8' })).not.toContain(`hone-${process.pid}-`);
  });
});

describe('a fault injector', () => {
  it('takes back whatever it did, and counts what struck', async () => {
    const set: string[] = [];
    const clockFile = join(directory, 'shift');
    const injector = new FaultInjector(
      {
        process: () => undefined,
        diskOf: () => directory,
        smallDisks: new Map(),
        clockFileOf: () => clockFile,
        store: { set: (kind, isOn) => set.push(`${kind} ${isOn ? 'on' : 'off'}`), counts: {} },
        startRival: () => set.push('rival'),
      },
      () => undefined,
    );
    await injector.run(
      [
        { kind: 'slow-link', forMs: 20, atMs: 0 },
        { kind: 'slow-link', forMs: 5, atMs: 1 },
        { kind: 'clock-jump', target: 'a', byMs: 5000, atMs: 1 },
        { kind: 'kill', service: 'replica', target: 'a', atMs: 2 },
        { kind: 'rival-publisher', atMs: 3 },
      ],
      new AbortController().signal,
    );
    expect(set).toEqual(['slow-link on', 'slow-link on', 'rival', 'slow-link off']);
    expect(readFileSync(clockFile, 'utf8')).toBe('0');
    expect(Object.fromEntries(injector.counts())).toEqual({ 'slow-link': 2, 'clock-jump': 1, 'rival-publisher': 1 });
  });
});

describe('a timeline', () => {
  const line = (service: string, id: string, event: string, more: object): string =>
    JSON.stringify({ service, id, event, ...more });
  const lines = parseLog(
    'all.jsonl',
    [
      line('publisher', 'trainer', 'weights-published', { time: 10_000, version: 1, bytes: 2048, anchor: true }),
      line('controller', 'east', 'version-seen', { time: 10_100, version: 'run/weight_v000001' }),
      line('controller', 'east', 'version-fetched', {
        time: 10_300,
        version: 'run/weight_v000001',
        bytes: 2048,
        ms: 200,
      }),
      line('replica', 'east-1', 'weights-committed', { time: 10_600, from: 0, version: 1, stageMs: 100, pauseMs: 2 }),
      line('replica', 'east-2', 'weights-committed', { time: 10_700, from: 0, version: 1, stageMs: 50, pauseMs: 1 }),
      line('replica', 'west-1', 'weights-committed', { time: 12_000, from: 0, version: 2, stageMs: 50, pauseMs: 1 }),
    ].join('\n'),
  );
  const clusters = new Map([
    ['east', ['east-1', 'east-2']],
    ['west', ['west-1']],
  ]);

  it('counts from the publication, takes the slowest replica, and says who went straight to a newer one', () => {
    const [version] = versionTimes(lines, clusters);
    expect(version).toMatchObject({ version: 1, isAnchor: true, isEverywhere: true });
    expect(version?.clusters).toMatchObject([
      { seenMs: 100, fetchedMs: 300, receivedMs: 649, stagedMs: 699, committedMs: 700, pauseMs: 2, overtaken: 0 },
      { seenMs: undefined, committedMs: undefined, replicas: 1, overtaken: 1 },
    ]);
    expect(version === undefined ? '' : timelineText(version)).toContain('overtaken');
  });

  it('is not over while a replica has neither this version nor a newer one', () => {
    const [version] = versionTimes(lines, new Map([...clusters, ['north', ['north-1']]]));
    expect(version?.isEverywhere).toBe(false);
  });
});
