/**
 * A whole fleet on one machine: clusters of one controller and some replicas each, and routers in front of them, every one a process
 * of its own. Owns which service is started with which options, their addresses and their end.
 * Invariant: once `stop` resolved, none of its processes is alive.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';

import type { ShapedLink } from './link-shaping.ts';
import { freePorts, ServiceProcess, type ServiceAddress } from './service-process.ts';

export interface ClusterPlan {
  readonly name: string;
  readonly replicas: number;
  /** Default: everything on the loopback. */
  readonly link?: ShapedLink;
  /** The weight store as this cluster reaches it. */
  readonly store: string;
}

export interface FleetOptions {
  /** Takes logs, caches and local weights. */
  readonly directory: string;
  /** Model folder that everything boots from. */
  readonly model: string;
  readonly clusters: readonly ClusterPlan[];
  readonly routers: number;
  /** More of the router's options, such as those of a hosted recorder. */
  readonly routerArguments?: readonly string[];
  readonly replicaArguments?: readonly string[];
  readonly controllerArguments?: readonly string[];
  /** The fleet's secret. */
  readonly token: string;
  /** Added to what every service gets: credentials of the store, PATH. */
  readonly environment: Readonly<Record<string, string>>;
  readonly pollEveryMs: number;
  /** Start services again that die. */
  readonly restart?: { readonly afterMs: number };
  /** What one service gets besides. */
  readonly dress?: (name: string) => {
    readonly nodeArguments?: readonly string[];
    readonly environment?: Readonly<Record<string, string>>;
  };
  /** Where a replica keeps its cache and weights; default: below `directory`. */
  readonly diskOf?: (name: string) => string;
  readonly onExit?: (name: string, how: string) => void;
}

export type ServiceRole = 'controller' | 'replica' | 'router';

export interface FleetService {
  readonly role: ServiceRole;
  /** Of a controller or replica. */
  readonly cluster: string | undefined;
  readonly process: ServiceProcess;
  readonly disk: string;
}

export class Fleet implements AsyncDisposable {
  readonly services = new Map<string, FleetService>();
  readonly #options: FleetOptions;
  /** Data and control URLs of the routers, as this machine reaches them. */
  readonly routers: { readonly url: string; readonly controlUrl: string }[] = [];

  /** Control URLs of the controllers. */
  readonly controllers: string[] = [];

  private constructor(options: FleetOptions) {
    this.#options = options;
  }

  /** Starts everything at once and returns; `ready` waits. */
  static async start(options: FleetOptions): Promise<Fleet> {
    const fleet = new Fleet(options);
    const { clusters, routers } = options;
    mkdirSync(join(options.directory, 'logs'), { recursive: true });
    const ports = await freePorts(routers * 2 + clusters.length);
    const next = (): number => ports.shift() ?? 0;
    const isShaped = clusters.some(({ link }) => (link?.through.length ?? 0) > 0);
    for (let index = 1; index <= routers; index++) {
      const [port, controlPort] = [next(), next()];
      fleet.routers.push({ url: `http://127.0.0.1:${port}`, controlUrl: `http://127.0.0.1:${controlPort}` });
      fleet.#add('router', {
        name: routers === 1 ? 'router' : `router-${index}`,
        words: [
          ...flags({
            host: isShaped ? '0.0.0.0' : '127.0.0.1',
            port: String(port),
            'control-port': String(controlPort),
          }),
          ...(options.routerArguments ?? []),
        ],
      });
    }
    for (const cluster of clusters) fleet.#addCluster(cluster, next());
    return fleet;
  }

  /** Resolves when every service says that it is ready. */
  async ready(signal?: AbortSignal): Promise<void> {
    await Promise.all(
      [...this.services.values()].map((service) => service.process.ready(signal === undefined ? {} : { signal })),
    );
  }

  ofRole(role: ServiceRole): string[] {
    return [...this.services].filter(([, service]) => service.role === role).map(([name]) => name);
  }

  /** What the service's control port says of it; undefined while it does not answer. */
  async status(name: string, timeoutMs = 2_000): Promise<unknown> {
    const address: ServiceAddress | undefined = this.services.get(name)?.process.address;
    const controlUrl = address?.controlUrl;
    if (controlUrl === undefined) return undefined;
    try {
      const answer = await fetch(new URL('/status', controlUrl), {
        headers: { authorization: `Bearer ${this.#options.token}` },
        signal: AbortSignal.timeout(timeoutMs),
      });
      return answer.ok ? await answer.json() : undefined;
    } catch {
      return undefined;
    }
  }

  async stop(): Promise<void> {
    const all = [...this.services.values()];
    const stop = async (role: ServiceRole): Promise<void> => {
      await Promise.all(all.filter((service) => service.role === role).map((service) => service.process.stop()));
    };
    // Replicas first: they say goodbye to the others.
    await stop('replica');
    await Promise.all([stop('controller'), stop('router')]);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  #addCluster({ name, replicas, link, store }: ClusterPlan, controllerPort: number): void {
    const { model, pollEveryMs, replicaArguments = [], controllerArguments = [] } = this.#options;
    const host = link?.host ?? '127.0.0.1';
    const hub = link?.hub ?? '127.0.0.1';
    const through = link?.through ?? [];
    const common = { cluster: name, host, 'poll-seconds': String(pollEveryMs / 1000) };
    this.controllers.push(`http://${host}:${controllerPort}`);
    this.#add('controller', {
      name,
      cluster: name,
      through,
      words: [...flags({ ...common, store, port: String(controllerPort) }), ...controllerArguments],
    });
    const routers = this.routers.map(({ controlUrl }) => controlUrl.replace('127.0.0.1', hub));
    for (let index = 1; index <= replicas; index++)
      this.#add('replica', {
        name: `${name}-${index}`,
        cluster: name,
        through,
        words: [
          ...flags({ ...common, model, id: `${name}-${index}`, controller: `http://${host}:${controllerPort}` }),
          ...routers.flatMap((url) => flags({ router: url })),
          ...replicaArguments,
        ],
      });
  }

  #add(
    role: ServiceRole,
    service: { name: string; cluster?: string; through?: readonly string[]; words: readonly string[] },
  ): void {
    const { directory, environment, token, restart, dress, diskOf, onExit } = this.#options;
    const { name, cluster, through = [], words } = service;
    const extra = dress?.(name);
    const disk = diskOf?.(name) ?? join(directory, 'disks', name);
    if (role !== 'router') mkdirSync(disk, { recursive: true });
    const logs = join(directory, 'logs');
    const process = new ServiceProcess({
      name,
      arguments: [
        'serve',
        role,
        ...words,
        ...diskFlags(role, disk),
        ...flags({ events: join(logs, `${name}.jsonl`) }),
        '--json',
      ],
      through,
      environment: { ...environment, HONE_TOKEN: token, ...extra?.environment },
      nodeArguments: extra?.nodeArguments ?? [],
      errorFile: join(logs, `${name}.txt`),
      ...(restart === undefined ? {} : { restart }),
      onExit: (how) => onExit?.(name, how),
    });
    this.services.set(name, { role, cluster, process, disk });
  }
}

function diskFlags(role: ServiceRole, disk: string): string[] {
  switch (role) {
    case 'router':
      return [];
    case 'controller':
      return flags({ cache: disk });
    case 'replica':
      return flags({ data: disk });
    default:
      role satisfies never;
      return [];
  }
}

/** `{ port: '80' }` as `--port 80`. */
function flags(values: Readonly<Record<string, string>>): string[] {
  return Object.entries(values).flatMap(([name, value]) => [`--${name}`, value]);
}
