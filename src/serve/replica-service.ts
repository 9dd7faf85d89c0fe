/**
 * One replica, whole: the boot model, the weights on its disk, the engine, its ports, the reconciler that follows the store or the
 * cluster, and its registration at routers. It owns their order of birth and death. Invariants: nothing is served before the first
 * catch-up; whatever leaves the served weights unknown ends the replica, after everything was refused. Longer than most files, as the
 * parts that are born and die in one order meet here.
 */
import { isIP } from 'node:net';
import { join } from 'node:path';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { CodecPool } from '../sync/delta/codec-pool.ts';
import type { TensorCodec } from '../sync/delta/delta-codec.ts';
import { parseModelConfig } from '../model/config.ts';
import { modelFingerprint } from '../model/model-fingerprint.ts';
import { FolderWeights } from '../sync/folder-weights.ts';
import { imageChecksum } from '../sync/image-checksum.ts';
import type { ClusterMemberEvent } from '../sync/cluster/cluster-member.ts';
import type { HeldVersion } from '../sync/local-weights.ts';
import {
  ReplicaReconciler,
  type ReconcilerEvent,
  type ReconcilerStatus,
  type SyncedReplica,
} from '../sync/reconciler.ts';
import { SideDataStore } from '../sync/side-data.ts';
import type { EmbeddedPolicy } from './embedded-policy.ts';
import { watchEngine, type EngineWatch } from './engine-watch.ts';
import { openBootModel } from './replica-boot.ts';
import { startEngine } from './replica-engine.ts';
import type { ReplicaServiceOptions, VersionSource } from './replica-options.ts';
import { ReplicaProblems } from './replica-problems.ts';
import { startReplicaServer, type ReplicaServer } from './replica-server.ts';
import {
  keepRegistered,
  type Registration,
  type RegistrationEvent,
  type ReplicaDescription,
} from './router/registration.ts';
import { BearerToken } from './service/bearer-token.ts';
import { ServiceLog } from './service/service-log.ts';

/** A commit beyond its drain, and an engine between two answers, take far less. */
const COMMIT_MS = 120_000;
const ENGINE_SILENCE_MS = 300_000;
const ENGINE_LOOK_MS = 5_000;
/** Before the first catch-up a failed look is repeated sooner than the backstop of the loop. */
const FIRST_LOOKS_MS = 1_000;

export interface ReplicaService extends AsyncDisposable {
  readonly id: string;
  readonly url: string;
  readonly controlUrl: string;
  readonly policy: EmbeddedPolicy;
  readonly server: ReplicaServer;
  /** Undefined when it follows nothing. */
  readonly syncStatus: ReconcilerStatus | undefined;
  /** Resolves at the first catch-up. */
  readonly ready: Promise<void>;
  /** Resolves when the replica is of no more use: with the failure, or with undefined after `close`. */
  readonly ended: Promise<HoneError | undefined>;
  /** Says goodbye to routers, lets what runs end up to the deadline, and closes everything. Safe to call twice. */
  close(): Promise<void>;
}

export async function startReplica(options: ReplicaServiceOptions): Promise<ReplicaService> {
  const token = options.token === undefined ? undefined : new BearerToken(options.token);
  const log = new ServiceLog({ path: options.eventsPath, service: 'replica', id: options.id, wallMs: options.wallMs });
  /** What the replica stands on; ends in the opposite order. */
  const closers: (() => Promise<void> | void)[] = [() => log.close()];
  const closeRest = async (): Promise<void> => {
    const failures: Error[] = [];
    for (const close of closers.splice(0).toReversed())
      try {
        await close();
      } catch (error) {
        // The others end all the same.
        failures.push(error instanceof Error ? error : new Error(String(error)));
      }
    if (failures[0] !== undefined) throw failures[0];
  };
  let service: RunningReplica | undefined;
  try {
    const codec = await CodecPool.start({ threads: options.threads });
    closers.push(() => codec.close());
    const boot = await openBootModel(options.model, codec);
    const weights = await FolderWeights.open(join(options.dataDirectory, 'weights'), {
      bootModel: options.model,
      bootTensors: boot.tensors,
      codec,
    });
    closers.push(() => weights.close());
    const { policy, served, source } = await startEngine(options, { codec, boot, weights });
    closers.push(() => policy.close());
    log.append({
      event: 'replica-start',
      bootId: options.bootId,
      runId: served.runId,
      version: served.version,
      imageChecksum: imageChecksum(served.checksums),
      source,
    });
    const model = modelFingerprint(parseModelConfig(boot.configJson));
    service = new RunningReplica(options, { token, log, codec, weights, policy, served, model, closeRest });
    await service.start();
    return service;
  } catch (error) {
    await (service === undefined ? closeRest() : service.close());
    throw error;
  }
}

interface Parts {
  readonly token: BearerToken | undefined;
  readonly log: ServiceLog;
  readonly codec: TensorCodec;
  readonly weights: FolderWeights;
  readonly policy: EmbeddedPolicy;
  readonly served: HeldVersion;
  /** Its fingerprint. */
  readonly model: string;
  /** Ends all of these. */
  readonly closeRest: () => Promise<void>;
}

class RunningReplica implements ReplicaService {
  readonly policy: EmbeddedPolicy;
  readonly #options: ReplicaServiceOptions;
  readonly #parts: Parts;
  readonly #ready = Promise.withResolvers<void>();
  readonly #ended = Promise.withResolvers<HoneError | undefined>();
  readonly #stop = new AbortController();
  readonly #problems: ReplicaProblems;
  #server: ReplicaServer | undefined;
  #source: VersionSource | undefined;
  #reconciler: ReplicaReconciler | undefined;
  #registration: Registration | undefined;
  #watch: EngineWatch | undefined;
  #loop: Promise<void> = Promise.resolve();
  #isClosing = false;
  #hasFailed = false;
  #closed: Promise<void> | undefined;

  constructor(options: ReplicaServiceOptions, parts: Parts) {
    this.#options = options;
    this.#parts = parts;
    this.policy = parts.policy;
    const { say = () => undefined, wallMs, now, followsController = false, token } = options;
    this.#problems = new ReplicaProblems({
      say,
      wallMs,
      now,
      onEvent: (event) => parts.log.append({ ...event }),
      followsController,
      hasToken: token !== undefined,
    });
  }

  get id(): string {
    return this.#options.id;
  }

  get server(): ReplicaServer {
    if (this.#server === undefined) throw new Error('a replica is handed out after its ports are open');
    return this.#server;
  }

  get url(): string {
    return this.server.url;
  }

  get controlUrl(): string {
    return this.server.controlUrl;
  }

  get syncStatus(): ReconcilerStatus | undefined {
    return this.#reconciler?.status();
  }

  get ready(): Promise<void> {
    return this.#ready.promise;
  }

  get ended(): Promise<HoneError | undefined> {
    return this.#ended.promise;
  }

  async start(): Promise<void> {
    const { policy, token, log } = this.#parts;
    const options = this.#options;
    const { maxWaiting, maxPendingBytes, stallMs, engineSilenceMs = ENGINE_SILENCE_MS } = options;
    this.#server = await startReplicaServer({
      policy,
      id: options.id,
      bootId: options.bootId,
      cluster: options.cluster,
      slots: options.slots,
      served: () => this.#served(),
      host: options.host,
      port: options.port,
      controlPort: options.controlPort,
      token,
      wake: () => this.#reconciler?.wake(),
      syncStatus: () => this.#reconciler?.status() ?? {},
      problems: () => this.#problems.list(),
      startingReason: () => this.#reconciler?.status().reason,
      sideData: () => this.#sideData(),
      peerRequest: (request, response) => this.#source?.handlePeerRequest?.(request, response) ?? false,
      log,
      now: options.now,
      newRequestId: options.newRequestId,
      ...(maxWaiting === undefined ? {} : { maxWaiting }),
      ...(maxPendingBytes === undefined ? {} : { maxPendingBytes }),
      ...(stallMs === undefined ? {} : { stallMs }),
    });
    void policy.broken.then((error) => this.#fail(error));
    this.#watch = watchEngine(policy, {
      everyMs: Math.min(ENGINE_LOOK_MS, engineSilenceMs / 2),
      silenceMs: engineSilenceMs,
      onSilent: (error) => this.#fail(error),
    });
    this.#source = await options.openSource?.({
      peerUrl: () => this.#reached(this.controlUrl),
      bootId: options.bootId,
      cacheDirectory: join(options.dataDirectory, 'cache'),
      onWake: () => this.#reconciler?.wake(),
      onEvent: (event) => this.#onClusterEvent(event),
      signal: this.#stop.signal,
    });
    this.#registration = keepRegistered({
      routers: options.routers,
      ...(options.token === undefined ? {} : { token: options.token }),
      describe: () => this.#describe(),
      random: options.random,
      onEvent: (event) => this.#onRouterEvent(event),
    });
    if (this.#source === undefined) this.#open();
    else this.#follow(this.#source);
  }

  close(): Promise<void> {
    return (this.#closed ??= this.#close());
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Follows the source until the replica ends, and opens the gate at the first catch-up. */
  #follow(source: VersionSource): void {
    const { codec, weights, served } = this.#parts;
    const { runId, verifyServed, pollEveryMs, now, dataDirectory, drainMs, commitMs = COMMIT_MS } = this.#options;
    this.#reconciler = new ReplicaReconciler(source, this.#synced(source), {
      codec,
      weights,
      served,
      cacheDirectory: join(dataDirectory, 'fetched'),
      verifyServed,
      // Draining is no failure, however long it was asked to take.
      deadlines: { commitMs: drainMs + commitMs },
      now,
      onEvent: (event) => this.#onEvent(event),
      ...(runId === undefined ? {} : { runId }),
    });
    const reconciler = this.#reconciler;
    source.report?.({
      kind: 'holding',
      ...(served.runId === undefined ? {} : { runId: served.runId }),
      version: served.version,
    });
    const watch = async (): Promise<void> => {
      while (!this.#stop.signal.aborted && !reconciler.status().isCaughtUp) {
        await reconciler.poll(this.#stop.signal);
        if (!reconciler.status().isCaughtUp) await this.#pause(Math.min(pollEveryMs, FIRST_LOOKS_MS));
      }
      if (this.#stop.signal.aborted) return;
      this.#open();
      await reconciler.run({ pollEveryMs, signal: this.#stop.signal });
    };
    this.#loop = watch().catch(async (error: unknown) => {
      // What the weights on disk go through now must end before they are closed.
      if (this.#stop.signal.aborted) return reconciler.settled();
      const failure =
        error instanceof HoneError ? error : new HoneError('engine-failed', reasonOf(error), { cause: error });
      this.#fail(failure);
    });
  }

  #synced(source: VersionSource): SyncedReplica {
    const { policy } = this.#parts;
    const { commitMode, drainMs } = this.#options;
    return {
      get version() {
        return policy.version;
      },
      stage: (name, bytes) => policy.stage(name, bytes),
      commit: (version) => {
        const { runId } = this.#reconciler?.status() ?? {};
        if (runId !== undefined) source.report?.({ kind: 'staged', runId, version });
        return policy.commit(version, { mode: commitMode, drainMs });
      },
      servedChecksums: () => policy.servedChecksums(),
    };
  }

  #onRouterEvent(event: RegistrationEvent): void {
    this.#problems.router(event);
    if (event.type === 'router-unheard') return;
    this.#parts.log.append({ event: event.type === 'registered' ? 'router-joined' : event.type, ...event });
  }

  #onClusterEvent(event: ClusterMemberEvent): void {
    this.#problems.cluster(event);
    if (event.event !== 'controller-unheard') this.#parts.log.append({ ...event });
  }

  #onEvent(event: ReconcilerEvent): void {
    const { log } = this.#parts;
    this.#problems.weights(event);
    const { metrics } = this.server;
    const { type, ...fields } = event;
    log.append({
      event: type,
      ...fields,
      ...('error' in event ? { error: reasonOf(event.error), code: codeOf(event.error) } : {}),
    });
    switch (event.type) {
      case 'weights-committed': {
        metrics.commits.inc();
        metrics.pause.observe(event.pauseMs / 1000);
        metrics.fetch.observe((event.fetchMs + event.applyMs) / 1000);
        metrics.stage.observe(event.stageMs / 1000);
        const { version, pauseMs } = event;
        const { runId } = this.#reconciler?.status() ?? {};
        if (runId !== undefined) this.#source?.report?.({ kind: 'committed', runId, version, pauseMs });
        this.#options.onCommitted?.(event);
        void this.#registration?.renew();
        return;
      }
      case 'sync-retry':
      case 'sync-refused':
        metrics.syncRetries.inc();
        return;
      case 'weights-reseeded':
      case 'sync-recovered':
      case 'sync-failed':
        return;
      default:
        event satisfies never;
    }
  }

  #open(): void {
    if (this.server.state !== 'starting') return;
    this.server.serve();
    this.#parts.log.append({ event: 'replica-ready', version: this.policy.version });
    void this.#registration?.renew();
    this.#ready.resolve();
  }

  #describe(): ReplicaDescription {
    const { id, bootId, cluster, slots } = this.#options;
    const runId = this.#reconciler?.status().runId;
    return {
      id,
      bootId,
      cluster,
      url: this.#reached(this.url),
      controlUrl: this.#reached(this.controlUrl),
      ...(runId === undefined ? {} : { runId }),
      version: this.policy.version,
      state: this.server.state,
      ...this.server.load(),
      slots,
      contextLength: this.policy.contextLength,
      ...this.#served(),
    };
  }

  #served(): Pick<ReplicaDescription, 'model' | 'weights'> {
    const { model, served } = this.#parts;
    const status = this.#reconciler?.status();
    const weights =
      status === undefined
        ? { version: served.version, imageChecksum: imageChecksum(served.checksums) }
        : { version: status.servedVersion, imageChecksum: status.imageChecksum };
    return { model, weights };
  }

  #sideData(): SideDataStore | undefined {
    const store = this.#options.sideDataStore;
    const runId = this.#reconciler?.status().runId ?? this.#options.runId;
    return store === undefined || runId === undefined ? undefined : new SideDataStore(store, { runId });
  }

  /** The gate closes at once; who owns the replica ends it. */
  #fail(error: HoneError): void {
    if (this.#isClosing || this.#hasFailed) return;
    this.#hasFailed = true;
    this.#server?.fail(error);
    this.#parts.log.append({ event: 'replica-failed', reason: error.message, code: error.code });
    void this.#registration?.renew();
    this.#ended.resolve(error);
  }

  async #pause(milliseconds: number): Promise<void> {
    const { signal } = this.#stop;
    await new Promise<void>((resolve) => {
      const end = (): void => {
        clearTimeout(timer);
        signal.removeEventListener('abort', end);
        resolve();
      };
      const timer = setTimeout(end, milliseconds);
      signal.addEventListener('abort', end, { once: true });
    });
  }

  async #close(): Promise<void> {
    this.#isClosing = true;
    this.#stop.abort();
    this.#watch?.stop();
    const { log, closeRest } = this.#parts;
    // The gate closes first; routers learn of it while what runs comes to its end.
    const ends = await Promise.allSettled([
      this.#server?.close({ drainMs: this.#options.drainMs }),
      this.#registration?.close(),
      this.#loop,
    ]);
    ends.push(...(await Promise.allSettled([this.#source?.close?.()])));
    log.append({ event: 'replica-end', version: this.policy.version });
    this.#ended.resolve(undefined);
    ends.push(...(await Promise.allSettled([closeRest()])));
    for (const end of ends) if (end.status === 'rejected') throw end.reason;
  }

  /** The same port by the name that others know this machine by. */
  #reached(url: string): string {
    const { advertisedHost } = this.#options;
    if (advertisedHost === undefined) return url;
    const reached = new URL(url);
    reached.hostname = isIP(advertisedHost) === 6 ? `[${advertisedHost}]` : advertisedHost;
    return reached.origin;
  }
}

function codeOf(error: unknown): string | undefined {
  return error instanceof HoneError ? error.code : undefined;
}
