/**
 * `hone` as a process of its own, as a user starts it: its output as it comes, signals, and how it ended. Also what the
 * tests read of a run folder: events, the bits of the newest checkpoint, and the buffer's groups.
 */
import { spawn, spawnSync } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { fileURLToPath } from 'node:url';

import { readStepEvents } from '../src/eval/events.ts';
import type { StepEvent } from '../src/eval/events.ts';
import type { RunConfigInput } from '../src/run/config.ts';
import { readEvents } from '../src/run/run-folder.ts';
import { readSafetensors } from '../src/tensor/safetensors.ts';

const LAUNCHER = fileURLToPath(new URL('../bin/hone.js', import.meta.url));

export interface HoneResult {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface HoneProcess extends AsyncDisposable {
  readonly child: ChildProcess;
  /** Resolves when standard error holds the text; rejects when the process ends without it. */
  reached(text: string): Promise<void>;
  readonly result: Promise<HoneResult>;
}

export interface StartOptions {
  readonly cwd: string;
  /** A shell line that starts the command given as its arguments, such as one that sets a limit first. */
  readonly through?: string;
  /** Set over those of this process. */
  readonly environment?: Readonly<Record<string, string>>;
}

/** Processes that still run. A test that is cut off never disposes of its own; they end with the test process then. */
const running = new Set<ChildProcess>();
process.on('exit', () => {
  for (const child of running) child.kill('SIGKILL');
});

/** The kernel ends the program when the test process is gone, however that ended; on other systems its exit does. */
const DIES_WITH_PARENT =
  process.platform === 'linux' && spawnSync('setpriv', ['--pdeathsig', 'KILL', 'true']).status === 0
    ? ['setpriv', '--pdeathsig', 'KILL', '--']
    : [];

export function startHone(args: readonly string[], { cwd, through, environment = {} }: StartOptions): HoneProcess {
  const command = [process.execPath, LAUNCHER, ...args];
  const [program = '', ...words] = [
    ...DIES_WITH_PARENT,
    ...(through === undefined ? command : ['sh', '-c', through, 'sh', ...command]),
  ];
  const env = { ...process.env, ...environment };
  const child = spawn(program, words, { cwd, env, stdio: ['ignore', 'pipe', 'pipe'] });
  running.add(child);
  child.once('exit', () => running.delete(child));
  let stdout = '';
  let stderr = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text));
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
  const result = once(child, 'close').then(([code, signal]): HoneResult => ({
    code: code as number | null,
    signal: signal as NodeJS.Signals | null,
    stdout,
    stderr,
  }));
  return {
    child,
    result,
    async reached(text) {
      let ended = false;
      void result.then(() => (ended = true));
      while (!stderr.includes(text)) {
        if (ended) throw new Error(`hone ended before it wrote ${JSON.stringify(text)}:\n${stderr}`);
        await Promise.race([once(child.stderr, 'data'), result]);
      }
    },
    async [Symbol.asyncDispose]() {
      child.kill('SIGKILL');
      await result;
    },
  };
}

/** A process that outlives the deadline is killed, so that a hanging test leaves nothing running. */
export async function runHone(
  args: readonly string[],
  options: StartOptions & { readonly deadlineMs?: number },
): Promise<HoneResult> {
  const hone = startHone(args, options);
  const deadline = setTimeout(() => hone.child.kill('SIGKILL'), options.deadlineMs ?? 110_000);
  try {
    return await hone.result;
  } finally {
    clearTimeout(deadline);
  }
}

/** Two small groups a step on short functions, no evaluation: a step takes a fraction of a second. */
export function writeConfig(directory: string, model: string, overrides: Partial<RunConfigInput> = {}): string {
  const config: RunConfigInput = {
    name: 'tiny',
    model,
    tasks: { maxCharacters: 240, maxLines: 10 },
    algorithm: { steps: 4, groupSize: 4, groupsPerStep: 4, learningRate: 1e-3, warmupSteps: 1 },
    schedule: { concurrency: 16 },
    engine: { build: 'plain', threads: 2, slots: 24 },
    reward: { base: { kind: 'detection', precisionWeight: 2 } },
    eval: { tasks: 0, controls: false },
    ...overrides,
  };
  const path = join(directory, `${config.name}.json`);
  writeFileSync(path, JSON.stringify(config));
  return path;
}

export function readSteps(run: string): StepEvent[] {
  return readStepEvents(readEvents(run));
}

/** Step events without what depends on the clock. */
export function timelessSteps(run: string): unknown[] {
  return readSteps(run).map(({ time: _time, metrics, ...event }) => ({
    ...event,
    metrics: Object.fromEntries(
      Object.entries(metrics).filter(([key]) => !key.startsWith('speed/') && key !== 'sync/pause_ms'),
    ),
  }));
}

/** Of master weights and both moments, by tensor name. */
export async function newestCheckpointHash(run: string): Promise<string> {
  const name =
    readdirSync(join(run, 'checkpoints'))
      .filter((file) => file.endsWith('.safetensors'))
      .toSorted()
      .at(-1) ?? '';
  const { tensors } = await readSafetensors(join(run, 'checkpoints', name));
  const hash = createHash('sha256').update(name);
  for (const [tensor, { bytes }] of [...tensors].toSorted(([one], [other]) => (one < other ? -1 : 1)))
    hash.update(tensor).update(bytes);
  return hash.digest('hex');
}

/** The version that the newest pointer file names, such as `tiny/weight_v000004`. */
export function readPointer(run: string): string {
  const directory = join(run, 'weights', '.pointers', 'latest');
  return readFileSync(join(directory, readdirSync(directory).toSorted().at(-1) ?? ''), 'utf8');
}

export interface StoredGroup {
  readonly ordinal: number;
  readonly state: string;
  readonly reason: string | null;
  readonly step: number | null;
  readonly rollouts: string[];
}

/** Every group with the ids of its finished rollouts; safe while a process writes or after it was killed. */
export function readGroups(run: string): StoredGroup[] {
  const database = new DatabaseSync(join(run, 'buffer.sqlite'));
  try {
    return database
      .prepare('SELECT ordinal, state, reason, step FROM groups ORDER BY ordinal')
      .all()
      .map((row) => ({
        ordinal: Number(row['ordinal']),
        state: String(row['state']),
        reason: row['reason'] === null ? null : String(row['reason']),
        step: row['step'] === null ? null : Number(row['step']),
        rollouts: database
          .prepare('SELECT id FROM rollouts WHERE ordinal = ? ORDER BY id')
          .all(Number(row['ordinal']))
          .map(({ id }) => String(id)),
      }));
  } finally {
    database.close();
  }
}
