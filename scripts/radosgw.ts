/**
 * `npm run radosgw -- start | stop | status`: a real S3 server on this machine, in memory, to try weight stores against.
 * `start` prints the environment and the location to use it with; `stop` ends it and leaves nothing.
 */
import { existsSync, readFileSync, readlinkSync, realpathSync, writeFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';

import {
  environmentOf,
  locationOf,
  missingRadosgw,
  signalProcess,
  startRadosgw,
  stopProcesses,
  type RadosgwAccess,
} from '../src/sync/store/radosgw.fixture.ts';

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

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { dir: { type: 'string' }, port: { type: 'string' } },
});
const directory = resolve(values.dir ?? join(tmpdir(), 'hone-radosgw'));
const port = values.port === undefined ? undefined : Number(values.port);

try {
  if (port !== undefined && !(Number.isInteger(port) && port > 0 && port < 65_536))
    throw new Error(`--port is ${values.port}, it must be a number from 1 to 65535.`);
  const [command] = positionals;
  if (positionals.length !== 1) throw new Error('Give one of start, stop and status.');
  if (command === 'start') await start(directory, port);
  else if (command === 'stop') await stop(directory);
  else if (command === 'status') status(directory);
  else throw new Error(`${command} is none of start, stop and status.`);
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
}
