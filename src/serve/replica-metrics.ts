/** What a replica counts, for Prometheus: `hone_replica_<what>_<unit>`. Invariant: a name never changes its meaning or unit. */
import { Counter, Gauge, Histogram, Registry } from 'prom-client';

export type RequestOutcome =
  | 'stop'
  | 'length'
  | 'abort'
  | 'failed'
  | 'invalid'
  | 'duplicate'
  | 'version'
  | 'busy'
  | 'unavailable'
  | 'unauthorized';

const SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120];

export class ReplicaMetrics {
  readonly registry = new Registry();
  readonly #registers = [this.registry];

  readonly requests = new Counter({
    name: 'hone_replica_requests_total',
    help: 'Requests by how they ended.',
    labelNames: ['outcome'],
    registers: this.#registers,
  });
  readonly tokens = new Counter({
    name: 'hone_replica_sampled_tokens_total',
    help: 'Tokens that were sampled and handed out.',
    registers: this.#registers,
  });
  readonly cachedTokens = new Counter({
    name: 'hone_replica_cached_prompt_tokens_total',
    help: 'Prompt tokens whose keys and values were already in the cache.',
    registers: this.#registers,
  });
  readonly promptTokens = new Counter({
    name: 'hone_replica_prompt_tokens_total',
    help: 'Prompt tokens of requests that were answered.',
    registers: this.#registers,
  });
  readonly active = new Gauge({
    name: 'hone_replica_requests_active',
    help: 'Requests that are sampled or wait.',
    registers: this.#registers,
  });
  readonly version = new Gauge({
    name: 'hone_replica_version_number',
    help: 'Policy version that is served.',
    registers: this.#registers,
  });
  readonly ready = new Gauge({
    name: 'hone_replica_ready_state',
    help: '1 while requests are taken, 0 otherwise.',
    registers: this.#registers,
  });
  readonly firstToken = new Histogram({
    name: 'hone_replica_first_token_seconds',
    help: 'From a request to its first token.',
    buckets: SECONDS,
    registers: this.#registers,
  });
  readonly tokenGap = new Histogram({
    name: 'hone_replica_token_gap_seconds',
    help: 'Between two tokens of one reply.',
    buckets: SECONDS,
    registers: this.#registers,
  });
  readonly request = new Histogram({
    name: 'hone_replica_request_seconds',
    help: 'From a request to its last token.',
    buckets: SECONDS,
    registers: this.#registers,
  });
  readonly commits = new Counter({
    name: 'hone_replica_commits_total',
    help: 'Versions that were committed.',
    registers: this.#registers,
  });
  readonly pause = new Histogram({
    name: 'hone_replica_commit_pause_seconds',
    help: 'How long a commit held up sampling.',
    buckets: [0.00001, 0.0001, 0.001, 0.01, 0.1, 1],
    registers: this.#registers,
  });
  readonly fetch = new Histogram({
    name: 'hone_replica_fetch_seconds',
    help: 'Time to fetch and apply a version.',
    buckets: SECONDS,
    registers: this.#registers,
  });
  readonly stage = new Histogram({
    name: 'hone_replica_stage_seconds',
    help: 'Time to stage a version while sampling.',
    buckets: SECONDS,
    registers: this.#registers,
  });
  readonly syncRetries = new Counter({
    name: 'hone_replica_sync_retries_total',
    help: 'Updates that failed before their commit and are tried again.',
    registers: this.#registers,
  });

  ended(outcome: RequestOutcome): void {
    this.requests.inc({ outcome });
  }
}
