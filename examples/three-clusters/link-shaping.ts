/**
 * The links between clusters and the rest of the world, on one machine: each cluster in a network namespace of its own behind a
 * shaped pair of virtual interfaces where this process may make them (root on Linux), else behind a relay that limits the bytes
 * a second on the way to the store. Invariant: `close` takes away every namespace and socket that was made, and nothing else.
 */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

export interface Link {
  readonly name: string;
  readonly megabitsPerSecond: number;
  /** One way. */
  readonly delayMs: number;
}

export interface ShapedLink {
  readonly link: Link;
  /** Words before a command that is to run in the cluster. */
  readonly through: readonly string[];
  /** Address that services in the cluster listen on. */
  readonly host: string;
  /** Address at which the cluster reaches services of this machine; they must listen on it. */
  readonly hub: string;
  /** Makes a port of this machine's loopback reachable from inside; returns the URL to use there. */
  expose(url: string): Promise<string>;
  /** What was done, for people. */
  readonly description: string;
}

export interface Links extends AsyncDisposable {
  readonly kind: 'namespaces' | 'relay';
  readonly clusters: readonly ShapedLink[];
  close(): Promise<void>;
}

export async function openLinks(
  links: readonly Link[],
  { kind = canMakeNamespaces() ? 'namespaces' : 'relay' }: { kind?: Links['kind'] } = {},
): Promise<Links> {
  return kind === 'namespaces' ? namespaceLinks(links) : relayLinks(links);
}

/** Tries it: nothing less tells. */
export function canMakeNamespaces(): boolean {
  if (process.platform !== 'linux' || process.getuid?.() !== 0) return false;
  const name = `hone-try-${process.pid}`;
  if (!run('ip', 'netns', 'add', name)) return false;
  const works = run('ip', 'netns', 'exec', name, 'tc', 'qdisc', 'add', 'dev', 'lo', 'root', 'tbf', ...bucket(100));
  run('ip', 'netns', 'del', name);
  return works;
}

function namespaceLinks(links: readonly Link[]): Links {
  // Another fleet on this machine has another process id, so hardly the same network.
  const network = `10.${200 + (process.pid % 50)}`;
  const relays: PortRelay[] = [];
  const made: string[] = [];
  const close = async (): Promise<void> => {
    await Promise.all(relays.splice(0).map((relay) => relay.close()));
    for (const namespace of made.splice(0)) run('ip', 'netns', 'del', namespace);
  };
  const clusters = links.map((link, index): ShapedLink => {
    const namespace = `hone-${process.pid}-${index}`;
    const outside = `hn${process.pid % 100_000}-${index}`;
    const inside = `in${process.pid % 100_000}-${index}`;
    const hub = `${network}.${index}.1`;
    const host = `${network}.${index}.2`;
    must('ip', 'netns', 'add', namespace);
    made.push(namespace);
    must('ip', 'link', 'add', outside, 'type', 'veth', 'peer', 'name', inside, 'netns', namespace);
    must('ip', 'addr', 'add', `${hub}/30`, 'dev', outside);
    must('ip', 'link', 'set', outside, 'up');
    const within = (...words: string[]): void => must('ip', 'netns', 'exec', namespace, ...words);
    within('ip', 'addr', 'add', `${host}/30`, 'dev', inside);
    within('ip', 'link', 'set', inside, 'up');
    within('ip', 'link', 'set', 'lo', 'up');
    must('tc', 'qdisc', 'add', 'dev', outside, 'root', 'handle', '1:', 'tbf', ...bucket(link.megabitsPerSecond));
    within('tc', 'qdisc', 'add', 'dev', inside, 'root', 'handle', '1:', 'tbf', ...bucket(link.megabitsPerSecond));
    // Delay takes a kernel module that not every kernel has; the rate alone does without.
    const delay = ['parent', '1:1', 'handle', '10:', 'netem', 'delay', `${link.delayMs}ms`];
    const isDelayed =
      link.delayMs > 0 &&
      run('tc', 'qdisc', 'add', 'dev', outside, ...delay) &&
      run('ip', 'netns', 'exec', namespace, 'tc', 'qdisc', 'add', 'dev', inside, ...delay);
    const missing =
      link.delayMs > 0 ? `, ${link.delayMs} ms each way on the way to the store only (this kernel has no netem)` : '';
    const delayText = isDelayed ? `, ${link.delayMs} ms each way` : missing;
    return {
      link,
      through: ['ip', 'netns', 'exec', namespace],
      host,
      hub,
      expose: async (url) => {
        const { port } = new URL(url);
        const relay = await PortRelay.open({
          host: hub,
          port: Number(port),
          target: Number(port),
          delayMs: isDelayed ? 0 : link.delayMs,
        });
        relays.push(relay);
        return withHost(url, hub, relay.port);
      },
      description: `network namespace, ${link.megabitsPerSecond} Mbit/s both ways (tc tbf)${delayText}`,
    };
  });
  return { kind: 'namespaces', clusters, close, [Symbol.asyncDispose]: close };
}

function relayLinks(links: readonly Link[]): Links {
  const relays: PortRelay[] = [];
  const close = async (): Promise<void> => {
    await Promise.all(relays.splice(0).map((relay) => relay.close()));
  };
  const clusters = links.map((link): ShapedLink => ({
    link,
    through: [],
    host: '127.0.0.1',
    hub: '127.0.0.1',
    expose: async (url) => {
      const relay = await PortRelay.open({
        host: '127.0.0.1',
        port: 0,
        target: Number(new URL(url).port),
        bytesPerSecond: (link.megabitsPerSecond * 1e6) / 8,
        delayMs: link.delayMs,
      });
      relays.push(relay);
      return withHost(url, '127.0.0.1', relay.port);
    },
    description: `throttling relay to the store, ${link.megabitsPerSecond} Mbit/s, ${link.delayMs} ms each way; tokens are not slowed down`,
  }));
  return { kind: 'relay', clusters, close, [Symbol.asyncDispose]: close };
}

interface RelayOptions {
  readonly host: string;
  readonly port: number;
  /** Port on this machine's loopback. */
  readonly target: number;
  /** Over all connections, each way. Default: as fast as it goes. */
  readonly bytesPerSecond?: number;
  readonly delayMs?: number;
}

/** Passes TCP connections on to a port of the loopback, at a limited rate. */
export class PortRelay {
  readonly port: number;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #closed = new AbortController();
  /** When the link is free again, by direction. */
  readonly #freeAtMs = { up: 0, down: 0 };
  /** Undefined = no limit. May change at any time. */
  bytesPerSecond: number | undefined;

  private constructor(server: Server, options: RelayOptions) {
    this.#server = server;
    this.bytesPerSecond = options.bytesPerSecond;
    // A listening TCP server's address is never a string or null.
    this.port = (server.address() as AddressInfo).port;
    server.on('connection', (client) => {
      const upstream = connect({ host: '127.0.0.1', port: options.target });
      for (const socket of [client, upstream]) {
        socket.setNoDelay(true);
        this.#sockets.add(socket);
        socket.on('close', () => this.#sockets.delete(socket));
        socket.on('error', () => {
          client.destroy();
          upstream.destroy();
        });
      }
      void this.#pass(client, upstream, { direction: 'up', delayMs: options.delayMs ?? 0 });
      void this.#pass(upstream, client, { direction: 'down', delayMs: options.delayMs ?? 0 });
    });
  }

  static async open(options: RelayOptions): Promise<PortRelay> {
    const server = createServer({ allowHalfOpen: true });
    server.listen(options.port, options.host);
    await once(server, 'listening');
    return new PortRelay(server, options);
  }

  async close(): Promise<void> {
    this.#closed.abort();
    for (const socket of this.#sockets) socket.destroy();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }

  async #pass(from: Socket, to: Socket, link: { direction: 'up' | 'down'; delayMs: number }): Promise<void> {
    try {
      for await (const chunk of from as AsyncIterable<Buffer>) {
        await this.#wait(chunk.byteLength, link);
        if (!to.write(chunk)) await once(to, 'drain', { signal: this.#closed.signal });
      }
      to.end();
    } catch {
      // The other side learns of it as it would of a cable that was cut.
      from.destroy();
      to.destroy();
    }
  }

  /** The delay comes on top of the rate, chunk by chunk: close enough for requests of a few round trips. */
  async #wait(sizeBytes: number, { direction, delayMs }: { direction: 'up' | 'down'; delayMs: number }): Promise<void> {
    const nowMs = performance.now();
    const sendMs = this.bytesPerSecond === undefined ? 0 : (sizeBytes / this.bytesPerSecond) * 1000;
    const freeAtMs = Math.max(nowMs, this.#freeAtMs[direction]) + sendMs;
    this.#freeAtMs[direction] = freeAtMs;
    const waitMs = freeAtMs - nowMs + delayMs;
    if (waitMs >= 1) await sleep(waitMs, undefined, { signal: this.#closed.signal });
  }
}

function withHost(url: string, host: string, port: number): string {
  const changed = new URL(url);
  changed.hostname = host;
  changed.port = String(port);
  return changed.href.replace(/\/$/, '');
}

/** A burst of 20 ms at the rate, at least one large packet. */
function bucket(megabitsPerSecond: number): string[] {
  const burstBytes = Math.max(65_536, Math.round((megabitsPerSecond * 1e6 * 0.02) / 8));
  return ['rate', `${megabitsPerSecond}mbit`, 'burst', String(burstBytes), 'latency', '400ms'];
}

function run(command: string, ...words: string[]): boolean {
  try {
    execFileSync(command, words, { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
}

function must(command: string, ...words: string[]): void {
  execFileSync(command, words, { stdio: ['ignore', 'ignore', 'pipe'] });
}
