/**
 * A member of a cluster as a process of its own, for tests and benchmarks that kill or measure it: joins, brings the objects named by
 * lines on standard input here, and tells on standard output what happened, one JSON object a line.
 * Arguments: controller URL, id, cache folder.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { createInterface } from 'node:readline';

import { ClusterMember } from '../sync/cluster/cluster-member.ts';
import { startControlServer } from './service/control-server.ts';

const [controllerUrl = '', id = '', cacheDirectory = '', mode = 'hash'] = process.argv.slice(2);
const tell = (event: unknown): void => {
  process.stdout.write(`${JSON.stringify(event)}\n`);
};
const late: { member?: ClusterMember } = {};
const server = await startControlServer({
  service: 'replica',
  host: '127.0.0.1',
  port: 0,
  token: undefined,
  health: () => ({ ready: true }),
  routes: () => undefined,
  raw: (request, response) => late.member?.handlePeerRequest(request, response) ?? false,
});
const member = await ClusterMember.join({
  controllerUrl,
  id,
  peerUrl: () => server.url,
  cacheDirectory,
  now: () => performance.now(),
  wallMs: Date.now,
  signal: new AbortController().signal,
  onWake: () => tell({ event: 'woken', atMs: Date.now() }),
  onEvent: tell,
});
late.member = member;
const cpuSeconds = (): number => process.cpuUsage().user / 1e6 + process.cpuUsage().system / 1e6;
tell({ event: 'started', url: server.url, cpuSeconds: cpuSeconds() });
for await (const key of createInterface(process.stdin)) {
  const startedMs = performance.now();
  await member.makeLocal(key);
  const ms = performance.now() - startedMs;
  const atMs = Date.now();
  const hash = createHash('sha256');
  if (mode === 'hash')
    for await (const bytes of createReadStream(member.localPath(key) ?? '')) hash.update(bytes as Buffer);
  tell({
    event: 'here',
    key,
    ms,
    sha256: hash.digest('hex'),
    counts: member.counts,
    parent: member.parentId,
    maxRssBytes: process.resourceUsage().maxRSS * 1024,
    cpuSeconds: cpuSeconds(),
    atMs,
  });
}
await server.close();
await member.close();
