/**
 * Which fault strikes what and when, as data: a pure function of the seed, so that a run that broke something can be run again.
 * Invariant: every kind that the fleet can suffer comes at least once when there is time for it, and all are over by the end.
 */
import { createRandom, deriveSeed, type Random } from '../../src/domain/ids.ts';

export type ServiceKind = 'replica' | 'controller' | 'router' | 'publisher';

export type Fault = { readonly atMs: number } & (
  | { readonly kind: 'kill'; readonly service: ServiceKind; readonly target: string }
  /** Two publishers at once: a second one starts, with bytes of its own. */
  | { readonly kind: 'rival-publisher' }
  /** The store's relay, for a while. */
  | {
      readonly kind: 'truncated-reads' | 'flipped-reads' | 'stale-listings' | 'store-errors' | 'slow-link';
      readonly forMs: number;
    }
  /** Bytes of a replica's disk; `restart`: it is killed at once, and has to start from them. */
  | {
      readonly kind: 'flipped-at-rest' | 'truncated-at-rest';
      readonly target: string;
      readonly draw: number;
      readonly restart: boolean;
    }
  | { readonly kind: 'full-disk'; readonly target: string; readonly forMs: number }
  | { readonly kind: 'clock-jump'; readonly target: string; readonly byMs: number }
);

export type FaultKind = Fault['kind'];

export interface FaultPlanOptions {
  readonly seed: number;
  readonly seconds: number;
  readonly targets: Readonly<Record<ServiceKind, readonly string[]>>;
  /** Replicas whose disk is small enough to be filled. */
  readonly smallDisks: readonly string[];
  /** The store is behind a relay that can spoil what passes. */
  readonly hasStoreRelay: boolean;
  /** Mean distance of two faults. */
  readonly everyMs?: number;
}

const HOUR_MS = 3_600_000;

export function createFaultPlan(options: FaultPlanOptions): Fault[] {
  const { seed, seconds, everyMs = 1500 } = options;
  const random = createRandom(deriveSeed(seed, 'faults'));
  const makers = faultMakers(options, random);
  const endMs = seconds * 1000;
  const faults: Fault[] = [];
  let waiting: ((atMs: number) => Fault)[] = [];
  for (let atMs = everyMs * 0.5; atMs < endMs; atMs += everyMs * (0.4 + 1.2 * random.next())) {
    // Each round goes through all kinds in an order of its own.
    if (waiting.length === 0) waiting = shuffled(makers, random);
    const make = waiting.pop();
    if (make === undefined) break;
    const fault = make(Math.round(atMs));
    faults.push('forMs' in fault ? { ...fault, forMs: Math.min(fault.forMs, endMs - fault.atMs) } : fault);
  }
  return faults;
}

function faultMakers(options: FaultPlanOptions, random: Random): ((atMs: number) => Fault)[] {
  const { targets, smallDisks, hasStoreRelay } = options;
  const spell = (): number => Math.round(1500 + 4000 * random.next());
  const replica = (): string => random.pick(targets.replica);
  const all = [...targets.replica, ...targets.controller, ...targets.router, ...targets.publisher];
  const makers: ((atMs: number) => Fault)[] = [];
  for (const service of ['replica', 'replica', 'controller', 'router', 'publisher'] as const)
    if (targets[service].length > 0)
      makers.push((atMs) => ({ kind: 'kill', service, target: random.pick(targets[service]), atMs }));
  if (targets.publisher.length > 0) makers.push((atMs) => ({ kind: 'rival-publisher', atMs }));
  if (hasStoreRelay)
    for (const kind of ['truncated-reads', 'flipped-reads', 'stale-listings', 'store-errors', 'slow-link'] as const)
      makers.push((atMs) => ({ kind, forMs: spell(), atMs }));
  for (const kind of ['flipped-at-rest', 'truncated-at-rest'] as const)
    makers.push((atMs) => ({
      kind,
      target: replica(),
      draw: random.below(2 ** 31),
      restart: random.next() < 0.5,
      atMs,
    }));
  if (smallDisks.length > 0)
    makers.push((atMs) => ({ kind: 'full-disk', target: random.pick(smallDisks), forMs: spell(), atMs }));
  makers.push((atMs) => ({
    kind: 'clock-jump',
    target: random.pick(all),
    byMs: Math.round((random.next() * 2 - 1) * HOUR_MS),
    atMs,
  }));
  return makers;
}

export function describeFault(fault: Fault): string {
  switch (fault.kind) {
    case 'kill':
      return `kill -9 of ${fault.target}`;
    case 'rival-publisher':
      return 'a second publisher starts';
    case 'truncated-reads':
    case 'flipped-reads':
    case 'stale-listings':
    case 'store-errors':
    case 'slow-link':
      return `${fault.kind.replace('-', ' ')} for ${(fault.forMs / 1000).toFixed(1)} s`;
    case 'flipped-at-rest':
    case 'truncated-at-rest':
      return `a file of ${fault.target} is ${fault.kind === 'flipped-at-rest' ? 'changed in one bit' : 'cut'}${fault.restart ? ', then it is killed' : ''}`;
    case 'full-disk':
      return `the disk of ${fault.target} is full for ${(fault.forMs / 1000).toFixed(1)} s`;
    case 'clock-jump':
      return `the clock of ${fault.target} jumps by ${(fault.byMs / 60_000).toFixed(1)} min`;
    default:
      fault satisfies never;
      return '';
  }
}

function shuffled<T>(list: readonly T[], random: Random): T[] {
  const copy = [...list];
  for (let place = copy.length - 1; place > 0; place--) {
    const other = random.below(place + 1);
    const [one, two] = [copy[place], copy[other]];
    if (one === undefined || two === undefined) continue;
    copy[place] = two;
    copy[other] = one;
  }
  return copy;
}
