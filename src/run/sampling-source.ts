/**
 * Who samples for a run: a replica in this process, or replicas elsewhere behind routers. It owns the policy's life and what the
 * run may ask of it. Invariant: `version` is the newest version that the run has published and may be answered by; `minVersion`
 * keeps every answer within the lag that the run allows.
 */
import { HoneError } from '../domain/errors.ts';
import type { HoneErrorCode } from '../domain/errors.ts';
import { policyVersion } from '../domain/ids.ts';
import type { PolicyVersion } from '../domain/ids.ts';
import type { GenerateRequest, Generation, Policy } from '../domain/policy.ts';
import { EmbeddedPolicy } from '../serve/embedded-policy.ts';
import type { EmbeddedPolicyOptions } from '../serve/embedded-policy.ts';
import type { ServedModel } from '../serve/router/generate-transport.ts';
import { HttpTransport } from '../serve/router/http-transport.ts';
import { RemotePolicy } from '../serve/router/remote-policy.ts';
import type { GenerationResumed, LoadKeptSets } from '../serve/router/remote-policy.ts';

export interface SamplingSource {
  readonly policy: Policy;
  /** Why nothing more will be sampled; undefined while it works. */
  readonly failure: HoneError | undefined;
  /** What a rollout that is admitted now is counted from. */
  readonly version: PolicyVersion;
  /** What an answer must be sampled by at least; undefined where the replica is always at `version`. */
  readonly minVersion: PolicyVersion | undefined;
  /** Threads that a replica in this process computes with. */
  setThreads(threads: number): Promise<void>;
  sampledTokens(): Promise<number>;
  /** How many versions an answer may be behind from now on. */
  allowLag(versions: number): void;
  close(): Promise<void>;
}

/** The replica in this process; whoever commits versions to it keeps it at the newest one. */
export class EmbeddedSource implements SamplingSource {
  readonly policy: EmbeddedPolicy;
  readonly minVersion = undefined;

  private constructor(policy: EmbeddedPolicy) {
    this.policy = policy;
  }

  static async start(setup: EmbeddedPolicyOptions): Promise<EmbeddedSource> {
    return new EmbeddedSource(await EmbeddedPolicy.start(setup));
  }

  get failure(): HoneError | undefined {
    return this.policy.failure;
  }

  get version(): PolicyVersion {
    return this.policy.version;
  }

  setThreads(threads: number): Promise<void> {
    return this.policy.setThreads(threads);
  }

  async sampledTokens(): Promise<number> {
    return (await this.policy.stats()).sampledTokens;
  }

  allowLag(): void {
    // Nothing lags: training waits for the commit.
  }

  close(): Promise<void> {
    return this.policy.close();
  }
}

export interface RoutedSourceOptions {
  /** Data URLs, best first. */
  readonly routers: readonly string[];
  readonly token: string | undefined;
  readonly deadlineSeconds: number;
  /** The version that the run goes on from. */
  readonly version: PolicyVersion;
  /** Of the model that the run trains; another one behind the routers ends the run. */
  readonly contextLength: number;
  /** Its fingerprint, weights aside. */
  readonly model: string;
  /** Of the run's versions that are known here, the one it booted from among them. */
  readonly imageChecksumOf: (version: number) => string | undefined;
  readonly now: () => number;
  /** Uniform in [0, 1): the jitter of waits. No bit of a run depends on it. */
  readonly random: () => number;
  /** Names requests; no bit of a run depends on them. */
  readonly newRequestId: () => string;
  readonly signal: AbortSignal;
  /** No replica can be asked yet, and why. */
  readonly onWaiting: (reason: string) => void;
  readonly onResumed: (event: GenerationResumed) => void;
  /** Reads the kept sets that replicas put into the store; undefined = they come with the tokens. */
  readonly loadKeptSets: LoadKeptSets | undefined;
}

/** What no other replica and no later try will answer otherwise: the run ends with it instead of dropping group after group. */
const FINAL: ReadonlySet<HoneErrorCode> = new Set(['invalid-config', 'invalid-model', 'unauthorized', 'store-denied']);
/** What a reply is given up with when its deadline is over. */
const GIVEN_UP: ReadonlySet<HoneErrorCode> = new Set(['no-replica', 'engine-failed', 'version-not-ready']);
/** How long a fleet may take until a first replica serves. */
const CONNECT_WAIT_MS = 120_000;

export class RoutedSource implements SamplingSource {
  readonly policy: Policy;
  failure: HoneError | undefined;
  readonly #remote: RemotePolicy;
  #published: PolicyVersion;
  #lag = 0;
  #sampled = 0;

  private constructor(remote: RemotePolicy, options: RoutedSourceOptions) {
    const { version, contextLength, deadlineSeconds, now } = options;
    this.#remote = remote;
    this.#published = version;
    let answeredAt = now();
    // A single slow reply is tried again; a fleet that answers nobody ends the run, which can be resumed.
    const isFinal = ({ code }: HoneError): boolean =>
      FINAL.has(code) || (GIVEN_UP.has(code) && now() - answeredAt >= (deadlineSeconds * 1000) / 2);
    const newestPublished = (): PolicyVersion => this.#published;
    this.policy = {
      contextLength,
      get version() {
        return newestPublished();
      },
      generate: async (request: GenerateRequest): Promise<Generation> => {
        let generation: Generation;
        try {
          refuseForeign(remote.servedModels, options);
          generation = await remote.generate(request);
        } catch (error) {
          if (error instanceof HoneError && isFinal(error)) this.failure ??= error;
          throw error;
        }
        answeredAt = now();
        this.#sampled += generation.tokens.length;
        return generation;
      },
    };
  }

  static async connect(options: RoutedSourceOptions): Promise<RoutedSource> {
    const {
      routers,
      token,
      deadlineSeconds,
      contextLength,
      now,
      random,
      newRequestId,
      signal,
      onWaiting,
      onResumed,
      loadKeptSets,
    } = options;
    const remote = await RemotePolicy.connect(new HttpTransport({ routers, token }), {
      now,
      random,
      newRequestId,
      deadlineMs: deadlineSeconds * 1000,
      // The deadline alone: a router that is away for longer than a few tries take must cost no rollout.
      mostAttempts: Number.POSITIVE_INFINITY,
      onEvent: onResumed,
      ...(loadKeptSets === undefined ? {} : { keptSets: { from: 'store', load: loadKeptSets } }),
      waitMs: CONNECT_WAIT_MS,
      onWait: onWaiting,
      signal,
    });
    try {
      if (remote.contextLength !== contextLength)
        throw foreign(
          `The replicas behind ${routers.join(', ')} have a context of ${remote.contextLength} tokens, the run's model one of ${contextLength}.`,
        );
      refuseForeign(remote.servedModels, options);
    } catch (error) {
      await remote.close();
      throw error;
    }
    return new RoutedSource(remote, options);
  }

  get version(): PolicyVersion {
    return this.#published;
  }

  get minVersion(): PolicyVersion {
    return policyVersion(Math.max(0, this.#published - this.#lag));
  }

  /** A version is in the store; replicas take it when they see it. */
  advanceTo(version: PolicyVersion): void {
    this.#published = version;
  }

  allowLag(versions: number): void {
    this.#lag = versions;
  }

  async setThreads(): Promise<void> {
    // The replicas have their own.
  }

  async sampledTokens(): Promise<number> {
    return this.#sampled;
  }

  close(): Promise<void> {
    return this.#remote.close();
  }
}

/** Tokens of another model, or of other weights under the same version, would be trained as if they were the run's own. */
function refuseForeign(
  served: readonly ServedModel[],
  { model, imageChecksumOf }: Pick<RoutedSourceOptions, 'model' | 'imageChecksumOf'>,
): void {
  for (const { replica, model: other, version, imageChecksum } of served) {
    if (other !== model) throw foreign(`Replica ${replica} serves another model than the run trains.`);
    const own = imageChecksumOf(version);
    if (own !== undefined && own !== imageChecksum)
      throw foreign(
        `Replica ${replica} serves other weights as version ${version}: their checksum is ${imageChecksum}, the run's ${own}.`,
      );
  }
}

function foreign(sentence: string): HoneError {
  return new HoneError('invalid-model', sentence, {
    cure: 'Start the replicas from the model folder that the run trains, with a data folder of their own and the store of the run.',
  });
}
