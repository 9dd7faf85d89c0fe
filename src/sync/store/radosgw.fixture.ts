/**
 * A real S3 server for tests and for trying things out: Debian's radosgw over one monitor and one storage daemon that keeps its
 * bytes in memory, on loopback, without authentication between them. Ready in about a second, gone without a trace after `stop`.
 * Where the programs are not installed, `missingRadosgw` says which, and tests that need them are skipped.
 */
import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { accessSync, constants, openSync, closeSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';

const run = promisify(execFile);

const PROGRAMS = ['ceph', 'ceph-mon', 'ceph-osd', 'monmaptool', 'radosgw', 'radosgw-admin'];
const RADOSGW_PACKAGES = ['radosgw', 'ceph-mon', 'ceph-osd'];
const START_TIMEOUT_MS = 90_000;
const STOP_TIMEOUT_MS = 10_000;

export interface RadosgwOptions {
  /** A folder of its own, made when missing; a temporary one by default. Removed by `stop`. */
  readonly directory?: string;
  /** A free one by default. */
  readonly port?: number;
  /** True: goes on when this process ends (`stopProcesses` ends it). False: ends with it, even when it is killed. */
  readonly isDetached?: boolean;
  /** Beside `weights`: buckets that everyone may read and write. */
  readonly publicBuckets?: readonly string[];
}

export interface RadosgwAccess {
  readonly endpoint: string;
  readonly accessKeyId: string;
  readonly secretAccessKey: string;
  readonly bucket: string;
}

export interface Radosgw extends RadosgwAccess, AsyncDisposable {
  readonly directory: string;
  /** Of the three processes, the front first. */
  readonly processIds: readonly number[];
  /** What `openWeightStore` takes as its environment. */
  readonly environment: Readonly<Record<string, string>>;
  /** `s3://…` of a prefix in the bucket. */
  location(prefix: string): string;
  stop(): Promise<void>;
}

/** The programs that are not installed, as a sentence; undefined when all are there. */
export function missingRadosgw(path = process.env['PATH'] ?? ''): string | undefined {
  const missing = PROGRAMS.filter(
    (program) => !path.split(delimiter).some((folder) => isProgram(join(folder, program))),
  );
  if (missing.length === 0) return undefined;
  return `${missing.join(', ')} not found: install ${RADOSGW_PACKAGES.join(' ')} (Debian) for an S3 server in tests`;
}

export function environmentOf(access: RadosgwAccess): Record<string, string> {
  return {
    AWS_ACCESS_KEY_ID: access.accessKeyId,
    AWS_SECRET_ACCESS_KEY: access.secretAccessKey,
    AWS_REGION: 'default',
  };
}

export function locationOf(access: RadosgwAccess, prefix: string): string {
  const query = new URLSearchParams({ endpoint: access.endpoint, pathStyle: 'true' });
  return `s3://${access.bucket}/${prefix}?${query.toString()}`;
}

export async function startRadosgw(options: RadosgwOptions = {}): Promise<Radosgw> {
  const missing = missingRadosgw();
  if (missing !== undefined) throw new Error(missing);
  const directory = options.directory ?? (await mkdtemp(join(tmpdir(), 'hone-radosgw-')));
  await mkdir(directory, { recursive: true });
  const started: ChildProcess[] = [];
  const stop = async (): Promise<void> => {
    await stopProcesses(started.map(({ pid }) => pid ?? 0));
    await rm(directory, { recursive: true, force: true });
  };
  try {
    const port = options.port ?? (await freePort());
    const access: RadosgwAccess = {
      endpoint: `http://127.0.0.1:${port}`,
      accessKeyId: `HONE${randomUUID().replaceAll('-', '').slice(0, 16).toUpperCase()}`,
      secretAccessKey: randomUUID().replaceAll('-', ''),
      bucket: 'weights',
    };
    const daemon = (name: string, program: string, ...more: readonly string[]): ChildProcess => {
      const child = startDaemon(program, [...more, '-f', '-c', 'ceph.conf'], {
        directory,
        output: join(directory, `${name}.out`),
        isDetached: options.isDetached === true,
      });
      started.unshift(child);
      return child;
    };
    const deadline = AbortSignal.timeout(START_TIMEOUT_MS);
    const admin = (program: string, ...more: readonly string[]): Promise<unknown> =>
      run(program, [...more, '-c', 'ceph.conf'], { cwd: directory, signal: deadline });
    const clusterId = randomUUID();
    const diskId = randomUUID();
    const monitorAddress = `[v2:127.0.0.1:${await freePort()}]`;
    await writeFile(join(directory, 'ceph.conf'), configuration({ clusterId, monitorAddress }));
    for (const folder of ['mon', 'osd']) await mkdir(join(directory, folder));
    await run('monmaptool', ['--create', '--clobber', '--fsid', clusterId, '--addv', 'a', monitorAddress, 'monmap'], {
      cwd: directory,
      signal: deadline,
    });
    await admin('ceph-mon', '--mkfs', '-i', 'a', '--monmap', 'monmap');
    daemon('mon', 'ceph-mon', '-i', 'a');
    await admin('ceph', '--connect-timeout', '30', 'osd', 'new', diskId);
    await admin('ceph-osd', '-i', '0', '--mkfs', '--osd-uuid', diskId);
    daemon('osd', 'ceph-osd', '-i', '0');
    const front = daemon(
      'rgw',
      'radosgw',
      '-n',
      'client.rgw',
      '--rgw-frontends',
      `beast endpoint=127.0.0.1:${port} tcp_nodelay=1`,
    );
    await waitForAnswer(access.endpoint, { front, output: join(directory, 'rgw.out'), deadline });
    const user = ['--uid=hone', '--display-name=hone'];
    await admin(
      'radosgw-admin',
      'user',
      'create',
      ...user,
      `--access-key=${access.accessKeyId}`,
      `--secret-key=${access.secretAccessKey}`,
    );
    await createBuckets(access, options.publicBuckets ?? []);
    if (options.isDetached === true) for (const child of started) child.unref();
    return {
      ...access,
      directory,
      processIds: started.map(({ pid }) => pid ?? 0),
      environment: environmentOf(access),
      location: (prefix) => locationOf(access, prefix),
      stop,
      [Symbol.asyncDispose]: stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** Asks the processes to end, waits, and ends what is still there. Those that are gone already are fine. */
export async function stopProcesses(processIds: readonly number[]): Promise<void> {
  const living = (): number[] => processIds.filter((id) => id > 0 && signalProcess(id, 0));
  // They keep nothing that would have to be written, and the monitor alone takes seconds to say good-bye.
  for (const id of living()) signalProcess(id, 'SIGKILL');
  for (let waitedMs = 0; living().length > 0 && waitedMs < STOP_TIMEOUT_MS; waitedMs += 20) await sleep(20);
}

export function signalProcess(id: number, signal: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(id, signal);
  } catch {
    return false;
  }
}

function isProgram(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

function startDaemon(
  program: string,
  parameters: readonly string[],
  { directory, output, isDetached }: { directory: string; output: string; isDetached: boolean },
): ChildProcess {
  const file = openSync(output, 'a');
  try {
    // The kernel ends the daemon with its parent, so that a killed test leaves no server behind.
    const [command, all] = isDetached
      ? [program, parameters]
      : ['setpriv', ['--pdeathsig', 'KILL', '--', program, ...parameters]];
    return spawn(command, all, { cwd: directory, stdio: ['ignore', file, file], detached: isDetached });
  } finally {
    closeSync(file);
  }
}

async function waitForAnswer(
  endpoint: string,
  { front, output, deadline }: { front: ChildProcess; output: string; deadline: AbortSignal },
): Promise<void> {
  for (;;) {
    if (front.exitCode !== null || front.signalCode !== null || deadline.aborted)
      throw new Error(`radosgw did not start: ${(await readFile(output, 'utf8')).trim() || 'no reason given'}`);
    try {
      await (await fetch(endpoint, { signal: deadline })).arrayBuffer();
      return;
    } catch {
      await sleep(30);
    }
  }
}

async function createBuckets(
  { endpoint, accessKeyId, secretAccessKey, bucket }: RadosgwAccess,
  publicBuckets: readonly string[],
): Promise<void> {
  const { S3 } = await import('@aws-sdk/client-s3');
  const s3 = new S3({
    endpoint,
    region: 'default',
    forcePathStyle: true,
    credentials: { accessKeyId, secretAccessKey },
  });
  try {
    await s3.createBucket({ Bucket: bucket });
    for (const name of publicBuckets) await s3.createBucket({ Bucket: name, ACL: 'public-read-write' });
  } finally {
    s3.destroy();
  }
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  server.close();
  await once(server, 'close');
  if (address === null || typeof address === 'string') throw new Error('A listening socket has no port.');
  return address.port;
}

/** Fast answers instead of batching, one copy of everything, garbage collected at once, no statistics. */
function configuration({ clusterId, monitorAddress }: { clusterId: string; monitorAddress: string }): string {
  return `[global]
fsid = ${clusterId}
mon initial members = a
mon host = ${monitorAddress}
public addr = 127.0.0.1
ms bind msgr1 = false
ms mon client mode = crc
auth cluster required = none
auth service required = none
auth client required = none
run dir = .
admin socket =
log file =
pid file =
mon data = mon
osd data = osd
osd objectstore = memstore
memstore device bytes = 17179869184
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 1000
mon mgr beacon grace = 86400
paxos propose interval = 0.01
paxos min wait = 0.005
rgw enable apis = s3, admin
rgw enable lc threads = false
rgw enable quota threads = false
rgw run sync thread = false
rgw gc obj min wait = 60
rgw gc processor period = 30
`;
}
