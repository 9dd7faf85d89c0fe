/**
 * `npm run chaos:sync`: a fleet on this machine under real load, with faults of every kind at random moments, and the verdict. The same
 * `--seed` gives the same plan. Exits 1 when an invariant is broken, with the log lines that show it.
 */
import { availableParallelism, loadavg } from 'node:os';
import { fileURLToPath } from 'node:url';

import { aCount, aSwitch, aText, oneOf, optional, readScriptOptions } from '../../scripts/script-options.ts';
import { renderTextTable } from '../../src/frontier/text-table.ts';
import { runChaos, type ChaosResult } from './chaos-run.ts';
import { faultCounts, verdictText } from './chaos-report.ts';
import { hasRadosgw } from './store-under-test.ts';

const values = readScriptOptions({
  name: 'chaos:sync',
  summary: 'A fleet under load, faults of every kind at random moments, and the verdict over five invariants.',
  options: {
    seconds: aCount(120, 'how long faults strike'),
    seed: optional(aCount(1, 'names the plan of faults; drawn, and printed, when left out')),
    store: oneOf(['s3', 'folder'], hasRadosgw() ? 's3' : 'folder', 'a real S3 server on loopback, or a folder'),
    model: aText(fileURLToPath(new URL('../../models/nano', import.meta.url)), 'Hugging Face folder', '<folder>'),
    clusters: aCount(3, 'clusters'),
    replicas: aCount(2, 'replicas of each cluster'),
    streams: aCount(12, 'requests under way at a time'),
    replays: aCount(200, 'answers that are sampled again'),
    publishEveryMs: aCount(1000, 'milliseconds between two versions'),
    faultEveryMs: aCount(1500, 'milliseconds between two faults, about'),
    convergeWithinSeconds: aCount(60, 'from the last fault to the newest version everywhere'),
    json: aSwitch('the result as one line of JSON'),
  },
});
// The seed names the run; a run without one draws it, and prints it.
const { seed = Math.floor(Math.random() * 1e9) + 1, seconds, clusters, store } = values;
const again = [
  `npm run chaos:sync -- --seed ${seed} --seconds ${seconds} --store ${store}`,
  `--clusters ${clusters} --replicas ${values.replicas} --streams ${values.streams}`,
  `--publish-every-ms ${values.publishEveryMs} --fault-every-ms ${values.faultEveryMs}`,
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
  clusters: Array.from({ length: clusters }, () => values.replicas),
  routers: 2,
  streams: values.streams,
  maxTokens: 96,
  publishEveryMs: values.publishEveryMs,
  faultEveryMs: values.faultEveryMs,
  convergeWithinMs: values.convergeWithinSeconds * 1000,
  replays: values.replays,
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
