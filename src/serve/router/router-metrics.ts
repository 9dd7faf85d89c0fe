/**
 * What a router counts, in Prometheus' form. It owns names and buckets; a name never changes after a release. Gauges are read from
 * the registry when somebody asks, so that they can't drift from it.
 */
import { Counter, Gauge, Histogram, Registry } from 'prom-client';

import { HEALTH_STATES } from './replica-health.ts';
import type { ReplicaRegistry } from './replica-registry.ts';
import type { RelayReport } from './relay.ts';

const SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120];

export class RouterMetrics {
  readonly #registry = new Registry();
  readonly #requests = new Counter({
    name: 'hone_router_requests_total',
    help: 'Requests by how they ended and their status.',
    labelNames: ['end', 'status'],
    registers: [this.#registry],
  });
  readonly #retries = new Counter({
    name: 'hone_router_retries_total',
    help: 'Tries that failed before their first byte, by reason; another replica was asked.',
    labelNames: ['reason'],
    registers: [this.#registry],
  });
  readonly #failovers = new Counter({
    name: 'hone_router_failovers_total',
    help: 'Requests that were answered whole by another replica than the one asked first.',
    registers: [this.#registry],
  });
  readonly #bytes = new Counter({
    name: 'hone_router_relayed_bytes_total',
    help: 'Bytes of answers passed on.',
    registers: [this.#registry],
  });
  readonly #firstByte = new Histogram({
    name: 'hone_router_first_byte_seconds',
    help: 'From a whole request to the first byte of its answer.',
    buckets: SECONDS,
    registers: [this.#registry],
  });
  readonly #total = new Histogram({
    name: 'hone_router_request_seconds',
    help: 'From a whole request to the end of its answer.',
    buckets: SECONDS,
    registers: [this.#registry],
  });

  constructor(replicas: ReplicaRegistry, sessions: () => number) {
    const registers = [this.#registry];
    new Gauge({
      name: 'hone_router_replicas',
      help: 'Replicas by state.',
      labelNames: ['state'],
      registers,
      collect() {
        const counts = new Map<string, number>(HEALTH_STATES.map((state) => [state, 0]));
        for (const { health } of replicas.entries()) counts.set(health.state, (counts.get(health.state) ?? 0) + 1);
        for (const [state, count] of counts) this.set({ state }, count);
      },
    });
    new Gauge({
      name: 'hone_router_in_flight_requests',
      help: 'Requests under way at replicas.',
      registers,
      collect() {
        let sum = 0;
        for (const { inFlight } of replicas.entries()) sum += inFlight;
        this.set(sum);
      },
    });
    new Gauge({
      name: 'hone_router_newest_version',
      help: 'Newest version that a serving replica has.',
      registers,
      collect() {
        this.set(replicas.newestVersion() ?? 0);
      },
    });
    new Gauge({
      name: 'hone_router_sessions',
      help: 'Sessions with a secret.',
      registers,
      collect() {
        this.set(sessions());
      },
    });
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  text(): Promise<string> {
    return this.#registry.metrics();
  }

  observe(report: RelayReport): void {
    this.#requests.inc({ end: report.end, status: report.status });
    for (const reason of report.retries) this.#retries.inc({ reason });
    if (report.retries.length > 0 && report.end === 'whole') this.#failovers.inc();
    this.#bytes.inc(report.bytes);
    if (report.firstByteMs !== undefined) this.#firstByte.observe(report.firstByteMs / 1000);
    this.#total.observe(report.totalMs / 1000);
  }
}
