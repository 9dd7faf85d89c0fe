/**
 * One service of the fleet as a process: started, awaited until it says that it is ready, stopped, and started again when it dies.
 * Invariant: once `stop` resolved, nothing that it started is alive.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const LAUNCHER = fileURLToPath(new URL('../../bin/hone.js', import.meta.url));

export interface ServiceOptions {
  readonly name: string;
  /** Of `hone`, or of `program` where that is given. */
  readonly arguments: readonly string[];
  /** A script that runs in place of `hone`. */
  readonly program?: string;
  /** Words before the command, such as those that enter a network namespace. */
  readonly through?: readonly string[];
  readonly environment: Readonly<Record<string, string>>;
  /** Arguments of Node itself. */
  readonly nodeArguments?: readonly string[];
  /** Takes everything that it writes to standard error. */
  readonly errorFile: string;
  /** Start it again when it ends by itself or by force. */
  readonly restart?: { readonly afterMs: number };
  /** A time limit for each start. */
  readonly readyWithinMs?: number;
  readonly onExit?: (how: string) => void;
}

/** The one line that a service prints when it is ready. */
export interface ServiceAddress {
  readonly service?: string;
  readonly id?: string;
  readonly url?: string;
  readonly controlUrl?: string;
}

export class ServiceProcess implements AsyncDisposable {
  readonly #options: ServiceOptions;
  #child: ChildProcess | undefined;
  #address: ServiceAddress | undefined;
  #isStopping = false;
  #loop: Promise<void>;
  #changed = Promise.withResolvers<void>();
  #failure: string | undefined;
  /** Starts so far. */
  starts = 0;

  constructor(options: ServiceOptions) {
    this.#options = options;
    this.#loop = this.#run();
  }

  get name(): string {
    return this.#options.name;
  }

  get pid(): number | undefined {
    return this.#child?.pid;
  }

  /** Undefined while it is down or starting. */
  get address(): ServiceAddress | undefined {
    return this.#address;
  }

  /** Resolves when it is ready; throws with its last words when it ended and is not started again, or the time is up. */
  async ready({ signal }: { signal?: AbortSignal } = {}): Promise<ServiceAddress> {
    const { name, readyWithinMs = 60_000 } = this.#options;
    const timeUp = AbortSignal.any([AbortSignal.timeout(readyWithinMs), ...(signal === undefined ? [] : [signal])]);
    const aborted = new Promise<void>((resolve) => timeUp.addEventListener('abort', () => resolve(), { once: true }));
    while (this.#address === undefined) {
      signal?.throwIfAborted();
      if (this.#failure !== undefined) throw new Error(this.#failure);
      if (timeUp.aborted) throw new Error(`${name} was not ready in ${readyWithinMs / 1000} s.\n${this.#lastWords()}`);
      await Promise.race([this.#changed.promise, aborted]);
    }
    return this.#address;
  }

  /** SIGKILL; a service that restarts comes back by itself. */
  kill(signal: NodeJS.Signals = 'SIGKILL'): void {
    this.#child?.kill(signal);
  }

  /** Asks it to end, and forces it after the grace period. Safe to call twice. */
  async stop(graceMs = 5_000): Promise<void> {
    this.#isStopping = true;
    this.#child?.kill('SIGTERM');
    const grace = new AbortController();
    const forced = sleep(graceMs, undefined, { signal: grace.signal })
      .then(() => this.#child?.kill('SIGKILL'))
      .catch(() => undefined);
    this.#tell();
    await this.#loop;
    grace.abort();
    await forced;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  async #run(): Promise<void> {
    const { restart, name, onExit } = this.#options;
    for (;;) {
      const how = await this.#once();
      this.#address = undefined;
      this.#tell();
      if (this.#isStopping) return;
      onExit?.(how);
      if (restart === undefined) {
        this.#failure = `${name} ended (${how}).\n${this.#lastWords()}`;
        this.#tell();
        return;
      }
      // A stop during the wait ends it at once.
      const wait = new AbortController();
      await Promise.race([
        sleep(restart.afterMs, undefined, { signal: wait.signal }).catch(() => undefined),
        this.#stopped(),
      ]);
      wait.abort();
      if (this.#hasToStop()) return;
    }
  }

  #hasToStop(): boolean {
    return this.#isStopping;
  }

  async #stopped(): Promise<void> {
    while (!this.#isStopping) await this.#changed.promise;
  }

  /** One life of the process; resolves with how it ended. */
  async #once(): Promise<string> {
    const { through = [], nodeArguments = [], program, errorFile, environment } = this.#options;
    const command = [...through, process.execPath, ...nodeArguments, program ?? LAUNCHER, ...this.#options.arguments];
    this.starts += 1;
    const errors = openSync(errorFile, 'a');
    const child = spawn(command[0] ?? process.execPath, command.slice(1), {
      env: { ...environment },
      stdio: ['ignore', 'pipe', errors],
      // Its own group: a Ctrl-C at the terminal reaches the starter alone, which stops everything in order.
      detached: true,
    });
    closeSync(errors);
    this.#child = child;
    let text = '';
    child.stdout?.setEncoding('utf8').on('data', (chunk: string) => {
      if (this.#address !== undefined) return;
      text += chunk;
      this.#address = readAddress(text);
      if (this.#address !== undefined) this.#tell();
    });
    try {
      // What the event gives, by its documentation.
      const [code, signal] = (await once(child, 'close')) as [number | null, NodeJS.Signals | null];
      return signal ?? `exit ${code ?? 'unknown'}`;
    } catch (error) {
      return String(error);
    } finally {
      this.#child = undefined;
    }
  }

  #tell(): void {
    this.#changed.resolve();
    this.#changed = Promise.withResolvers<void>();
  }

  #lastWords(): string {
    try {
      return readFileSync(this.#options.errorFile, 'utf8').slice(-1500);
    } catch {
      return '';
    }
  }
}

/** The first line that is JSON and has an address. */
function readAddress(text: string): ServiceAddress | undefined {
  for (const line of text.split('\n').slice(0, -1)) {
    if (!line.startsWith('{')) continue;
    try {
      return JSON.parse(line) as ServiceAddress; // Written by the service named; fields are looked at where they are used.
    } catch {
      continue;
    }
  }
  return undefined;
}

/** Ports that were free a moment ago, for services whose address others must know before they start. */
export async function freePorts(count: number, host = '127.0.0.1'): Promise<number[]> {
  const servers = Array.from({ length: count }, () => createServer());
  const ports = await Promise.all(
    servers.map(async (server) => {
      server.listen(0, host);
      await once(server, 'listening');
      const address = server.address();
      return typeof address === 'object' && address !== null ? address.port : 0;
    }),
  );
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  return ports;
}
