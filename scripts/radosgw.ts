/**
 * `npm run radosgw -- start | stop | status`: a real S3 server on this machine, in memory, to try weight stores against.
 * `start` prints the environment and the location to use it with; `stop` ends it and leaves nothing.
 */
import { existsSync, readFileSync, readlinkSync, realpathSync, writeFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

import {
  environmentOf,
  locationOf,
  missingRadosgw,
  signalProcess,
  startRadosgw,
  stopProcesses,
  type RadosgwAccess,
} from '../src/sync/store/radosgw.fixture.ts';
import { aCount, aText, optional, readScriptOptions } from './script-options.ts';

interface State extends RadosgwAccess {
  readonly processIds: readonly number[];
}

const STATE_FILE = 'radosgw.json';

function readState(directory: string): State | undefined {
  const path = join(directory, STATE_FILE);
  if (!existsSync(path)) return undefined;
  return JSON.parse(readFileSync(path, 'utf8')) as State; // This script wrote it.
}

/** Only processes that still work in the folder: an id may have been given to another program since. */
function livingProcesses(directory: string, { processIds }: State): number[] {
  return processIds.filter((id) => {
    try {
      return signalProcess(id, 0) && readlinkSync(`/proc/${id}/cwd`) === realpathSync(directory);
    } catch {
      return false;
    }
  });
}

function describeUse(directory: string, state: State): string {
  const lines = Object.entries(environmentOf(state)).map(([name, value]) => `export ${name}=${value}`);
  lines.push(`export HONE_STORE='${locationOf(state, 'run')}'`);
  return `# radosgw at ${state.endpoint}, files in ${directory}, processes ${state.processIds.join(', ')}\n${lines.join('\n')}\n`;
}

async function start(directory: string, port: number | undefined): Promise<void> {
  const before = readState(directory);
  if (before !== undefined && livingProcesses(directory, before).length > 0) {
    process.stdout.write(describeUse(directory, before));
    return;
  }
  if (before === undefined && existsSync(directory))
    throw new Error(`${directory} is there and was not made by this script: give a folder that is not, with --dir.`);
  await rm(directory, { recursive: true, force: true });
  const server = await startRadosgw({ directory, isDetached: true, ...(port === undefined ? {} : { port }) });
  const { endpoint, accessKeyId, secretAccessKey, bucket, processIds } = server;
  const state: State = { endpoint, accessKeyId, secretAccessKey, bucket, processIds };
  writeFileSync(join(directory, STATE_FILE), `${JSON.stringify(state, null, 2)}\n`, { mode: 0o600 });
  process.stdout.write(describeUse(directory, state));
}

async function stop(directory: string): Promise<void> {
  const state = readState(directory);
  if (state === undefined) {
    process.stdout.write(`No radosgw was started in ${directory}.\n`);
    return;
  }
  const living = livingProcesses(directory, state);
  await stopProcesses(living);
  await rm(directory, { recursive: true, force: true });
  process.stdout.write(`Stopped ${living.length} processes and removed ${directory}.\n`);
}

function status(directory: string): void {
  const state = readState(directory);
  if (state !== undefined && livingProcesses(directory, state).length === state.processIds.length) {
    process.stdout.write(describeUse(directory, state));
    return;
  }
  process.stdout.write(`No radosgw runs in ${directory}: ${missingRadosgw() ?? 'start one with `start`'}.\n`);
  process.exitCode = 1;
}

const values = readScriptOptions({
  name: 'radosgw',
  summary: 'A real S3 server on loopback, to try object storage with: Ceph’s, where its packages are installed.',
  commands: ['start', 'stop', 'status'],
  options: {
    dir: aText(join(tmpdir(), 'hone-radosgw'), 'where it keeps its data', '<folder>'),
    port: optional(aCount(8000, 'port to listen on; a free one when left out', 65_535)),
  },
});
const directory = resolve(values.dir);
const { port, command } = values;

try {
  if (command === 'start') await start(directory, port);
  else if (command === 'stop') await stop(directory);
  else status(directory);
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
}
