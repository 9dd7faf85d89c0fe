/**
 * The run folder: resolved config, append-only events, buffer, weights and checkpoints of one run.
 * Invariant: one process at a time holds it, and a folder that is copied whole can be inspected and resumed elsewhere.
 */
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  renameSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { jsonDifferences } from '../domain/json-differences.ts';
import { lockFolder, type FolderLock } from '../tensor/folder-lock.ts';
import type { RunConfig } from './config.ts';

export type RunEvent = Readonly<Record<string, unknown>> & { readonly event: string };

/** Made when everything that sampling needs is there. */
const BUFFER_FILE = 'buffer.sqlite';

export class RunFolder {
  readonly path: string;
  readonly config: RunConfig;
  readonly #clock: () => Date;
  readonly #lock: FolderLock;

  private constructor(path: string, config: RunConfig, own: { clock: () => Date; lock: FolderLock }) {
    this.path = path;
    this.config = config;
    this.#clock = own.clock;
    this.#lock = own.lock;
  }

  /**
   * Throws unless a new run may begin at this path; writes nothing. One that ended before it sampled anything, for want of a store or of
   * replicas say, holds nothing that could be lost: it may be begun again, under another config too.
   */
  static checkFree(path: string): void {
    if (existsSync(join(path, 'config.json')) && existsSync(join(path, BUFFER_FILE)))
      throw new HoneError('run-config-changed', `${path} already holds a run.`, {
        cure: 'Continue it with --resume, choose another --name, or remove the folder.',
      });
  }

  /** A new run; refuses a folder that holds one already. */
  static create(path: string, config: RunConfig, clock: () => Date = () => new Date()): RunFolder {
    RunFolder.checkFree(path);
    try {
      for (const folder of ['', 'checkpoints', 'weights', 'eval']) mkdirSync(join(path, folder), { recursive: true });
    } catch (cause) {
      throw new HoneError('store-failed', `The run folder ${path} could not be made.`, {
        cure: 'Choose a --runs directory that you can write to.',
        cause,
      });
    }
    const folder = new RunFolder(path, config, { clock, lock: lock(path) });
    writeFileAtomic(join(path, 'config.json'), `${JSON.stringify(config, null, 2)}\n`);
    return folder;
  }

  /** An existing run, under the config that it began with. */
  static resume(path: string, config: RunConfig, clock: () => Date = () => new Date()): RunFolder {
    if (!existsSync(join(path, 'config.json')))
      throw new HoneError('invalid-config', `${path} holds no run to resume.`, {
        cure: 'Start it without --resume, or name the right folder.',
      });
    const stored: unknown = JSON.parse(readFileSync(join(path, 'config.json'), 'utf8'));
    const changes = jsonDifferences(stored, JSON.parse(JSON.stringify(config)));
    if (changes.length > 0)
      throw new HoneError('run-config-changed', `${path} was begun under another config: ${changes.join('; ')}.`, {
        cure: 'Put these values back to resume, or start a new run under another --name.',
      });
    const folder = new RunFolder(path, config, { clock, lock: lock(path) });
    dropHalfLine(join(path, 'events.jsonl'));
    dropHalfFiles(join(path, 'checkpoints'));
    return folder;
  }

  get bufferPath(): string {
    return join(this.path, BUFFER_FILE);
  }
  get weightsPath(): string {
    return join(this.path, 'weights');
  }
  checkpointPath(step: number): string {
    return join(this.path, 'checkpoints', `step-${String(step).padStart(6, '0')}.safetensors`);
  }

  /** Steps whose checkpoint is whole, ascending. */
  checkpoints(): number[] {
    return readdirSync(join(this.path, 'checkpoints'))
      .flatMap((name) => /^step-(\d{6})\.safetensors$/u.exec(name)?.[1] ?? [])
      .map(Number)
      .sort((a, b) => a - b);
  }

  pruneCheckpoints(keep: number): void {
    for (const step of this.checkpoints().slice(0, -keep)) {
      rmSync(this.checkpointPath(step), { force: true });
      rmSync(join(this.path, stepRecordFile(step)), { force: true });
    }
  }

  append(event: RunEvent): void {
    const file = join(this.path, 'events.jsonl');
    const line = `${JSON.stringify({ time: this.#clock().toISOString(), ...event })}\n`;
    writing(file, () => appendFileSync(file, line));
  }

  events(): RunEvent[] {
    return readEvents(this.path);
  }

  writeJson(name: string, value: unknown): string {
    const path = join(this.path, name);
    writeFileAtomic(path, `${JSON.stringify(value, null, 2)}\n`);
    return path;
  }

  writeText(name: string, text: string): string {
    const path = join(this.path, name);
    writeFileAtomic(path, text);
    return path;
  }

  readJson(name: string): unknown {
    const path = join(this.path, name);
    return existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : undefined;
  }

  release(): void {
    this.#lock.release();
  }
}

/** What a step measured and decided, beside its checkpoint and there before it. */
export function stepRecordFile(step: number): string {
  return `checkpoints/step-${String(step).padStart(6, '0')}.json`;
}

/** Lines that were cut by a crash are left out. */
export function readEvents(path: string): RunEvent[] {
  const file = join(path, 'events.jsonl');
  if (!existsSync(file)) return [];
  return readFileSync(file, 'utf8')
    .split('\n')
    .flatMap((line) => {
      try {
        // Every line was written by append().
        return line === '' ? [] : [JSON.parse(line) as RunEvent];
      } catch {
        return [];
      }
    });
}

function lock(path: string): FolderLock {
  return lockFolder(path, {
    fileName: 'run.lock',
    cure: 'Wait for it, stop it, or start another run under another --name.',
  });
}

/** What a killed process was still writing: a checkpoint without its name is as large as one with it. */
function dropHalfFiles(directory: string): void {
  for (const name of readdirSync(directory)) if (name.endsWith('.tmp')) rmSync(join(directory, name), { force: true });
}

function dropHalfLine(file: string): void {
  if (!existsSync(file)) return;
  const bytes = readFileSync(file);
  const end = bytes.lastIndexOf(0x0a) + 1;
  if (end < bytes.length) truncateSync(file, end);
}

function writeFileAtomic(path: string, text: string): void {
  const temporary = `${path}.tmp`;
  writing(path, () => {
    writeFileSync(temporary, text);
    renameSync(temporary, path);
  });
}

function writing(path: string, body: () => void): void {
  try {
    body();
  } catch (cause) {
    throw new HoneError('store-failed', `Could not write ${path}: ${reasonOf(cause)}.`, {
      cure: 'Make room on the disk of the run folder, then go on with --resume; what was stored before is whole.',
      cause,
    });
  }
}
