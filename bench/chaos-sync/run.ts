/**
 * `npm run chaos:sync`: a fleet on this machine under real load, with faults of every kind at random moments, and the verdict. The same
 * `--seed` gives the same plan. Exits 1 when an invariant is broken, with the log lines that show it.
 */
import { availableParallelism, loadavg } from 'node:os';
import { parseArgs } from 'node:util';
import { fileURLToPath } from 'node:url';

import { renderTextTable } from '../../src/frontier/text-table.ts';
import { runChaos, type ChaosResult } from './chaos-run.ts';
import { faultCounts, verdictText } from './chaos-report.ts';
import { hasRadosgw } from './store-under-test.ts';

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '120' },
    seed: { type: 'string' },
    store: { type: 'string' },
    model: { type: 'string', default: fileURLToPath(new URL('../../models/nano', import.meta.url)) },
    clusters: { type: 'string', default: '3' },
    replicas: { type: 'string', default: '2' },
    streams: { type: 'string', default: '12' },
    replays: { type: 'string', default: '200' },
    'publish-every-ms': { type: 'string', default: '1000' },
    'fault-every-ms': { type: 'string', default: '1500' },
    'converge-within-seconds': { type: 'string', default: '60' },
    json: { type: 'boolean', default: false },
  },
});

const wholeNumber = (name: string, text: string): number => {
  const number = Number(text);
  if (Number.isSafeInteger(number) && number > 0) return number;
  console.error(`chaos:sync: --${name} is ${JSON.stringify(text)}, expected a whole number above 0.`);
  process.exit(2);
};
// The seed names the run; a run without one draws it, and prints it.
const seed = values.seed === undefined ? Math.floor(Math.random() * 1e9) + 1 : wholeNumber('seed', values.seed);
const seconds = wholeNumber('seconds', values.seconds);
const clusters = wholeNumber('clusters', values.clusters);
const store = values.store ?? (hasRadosgw() ? 's3' : 'folder');
if (store !== 's3' && store !== 'folder') {
  console.error(`chaos:sync: --store is ${JSON.stringify(store)}, expected s3 or folder.`);
  process.exit(2);
}
const again = [
  `npm run chaos:sync -- --seed ${seed} --seconds ${seconds} --store ${store}`,
  `--clusters ${clusters} --replicas ${values.replicas} --streams ${values.streams}`,
  `--publish-every-ms ${values['publish-every-ms']} --fault-every-ms ${values['fault-every-ms']}`,
].join(' ');

const stop = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM'] as const)
  process.once(signal, () => stop.abort(new Error(`ended by ${signal}`)));

const print = (line: string): void => void process.stderr.write(`${line}\n`);
print(`seed ${seed}; ${availableParallelism()} cores, load ${loadavg()[0]?.toFixed(1) ?? '?'} at the start`);
const result = await runChaos({
  seed,
  seconds,
  store,
  model: values.model,
  clusters: Array.from({ length: clusters }, () => wholeNumber('replicas', values.replicas)),
  routers: 2,
  streams: wholeNumber('streams', values.streams),
  maxTokens: 96,
  publishEveryMs: wholeNumber('publish-every-ms', values['publish-every-ms']),
  faultEveryMs: wholeNumber('fault-every-ms', values['fault-every-ms']),
  convergeWithinMs: wholeNumber('converge-within-seconds', values['converge-within-seconds']) * 1000,
  replays: wholeNumber('replays', values.replays),
  print,
  signal: stop.signal,
  environment: { PATH: process.env['PATH'] ?? '', HOME: process.env['HOME'] ?? '' },
});

if (values.json) console.log(JSON.stringify(summary(result)));
else printResult(result);
if (result.breaches.length > 0) process.exitCode = 1;

function printResult(chaos: ChaosResult): void {
  const rows = faultCounts(chaos.plan, chaos.injected).map(({ what, injected, planned }) => [
    what,
    String(injected),
    String(planned),
  ]);
  const spoilt = Object.entries(chaos.storeFaults).map(([what, count]) => [`  requests: ${what}`, String(count), '']);
  console.log(`\n${renderTextTable(['fault', 'injected', 'planned'], [...rows, ...spoilt], { gap: 3 })}\n`);
  const dropped = [...chaos.dropped].map(([reason, count]) => `${count} ${reason}`).join(', ');
  console.log(
    [
      `${chaos.accepted} rollouts accepted with ${chaos.tokens} tokens, ${chaos.resumed} times one went on elsewhere in mid-answer; dropped: ${dropped || 'none'}`,
      `${chaos.published} versions published, ${chaos.commits} commits on replicas, ${chaos.starts} starts of services`,
      `${chaos.replayed} generations over ${chaos.replayedVersions} versions sampled again from the published bytes, bit for bit`,
      '',
      verdictText(chaos.breaches),
      '',
      chaos.breaches.length === 0
        ? `HELD: every invariant, through ${chaos.injected.length} faults. Again: ${again}`
        : `BROKEN: ${chaos.breaches.length} breaches. Logs: ${chaos.directory ?? 'none'}. Again: ${again}`,
    ].join('\n'),
  );
}

function summary({ breaches, dropped, injected, plan, ...rest }: ChaosResult): unknown {
  return {
    ...rest,
    seed,
    dropped: Object.fromEntries(dropped),
    faults: faultCounts(plan, injected),
    breaches: breaches.map(({ invariant, sentence }) => ({ invariant, sentence })),
  };
}
