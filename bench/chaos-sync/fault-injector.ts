/**
 * Carries out a plan of faults on a running fleet, each at its time on a clock that does not jump. Owns what lasts a while and has to
 * be taken back. Invariant: once `run` resolved, whatever was made slow, full, wrong or early is as it was.
 */
import { writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

import type { ServiceProcess } from '../../examples/three-clusters/service-process.ts';
import { spoilFile, type SmallDisk } from './disk-faults.ts';
import { describeFault, type Fault, type FaultKind } from './fault-plan.ts';

/** Ways to spoil what passes between the fleet and its store. */
export interface StoreFaults {
  set(kind: StoreFaultKind, isOn: boolean): void;
  /** Requests that were really spoilt so far, by how. */
  readonly counts: Readonly<Record<string, number>>;
}

export type StoreFaultKind = 'truncated-reads' | 'flipped-reads' | 'stale-listings' | 'store-errors' | 'slow-link';

export interface FaultTargets {
  readonly process: (name: string) => ServiceProcess | undefined;
  /** Folder with a service's cache and weights. */
  readonly diskOf: (name: string) => string;
  readonly smallDisks: ReadonlyMap<string, SmallDisk>;
  /** File that holds the shift of a service's clock in milliseconds. */
  readonly clockFileOf: (name: string) => string;
  readonly store: StoreFaults | undefined;
  readonly startRival: () => void;
}

export interface InjectedFault {
  readonly fault: Fault;
  /** What came of it; undefined = there was nothing to strike. */
  readonly done: string | undefined;
}

export class FaultInjector {
  readonly #targets: FaultTargets;
  readonly #onFault: (injected: InjectedFault) => void;
  /** Spells of one kind that overlap end with the last. */
  readonly #lasting = new Map<string, number>();
  readonly #shifted = new Set<string>();
  readonly injected: InjectedFault[] = [];

  constructor(targets: FaultTargets, onFault: (injected: InjectedFault) => void) {
    this.#targets = targets;
    this.#onFault = onFault;
  }

  async run(plan: readonly Fault[], signal: AbortSignal): Promise<void> {
    const startedMs = performance.now();
    const spells: Promise<void>[] = [];
    try {
      for (const fault of plan) {
        await sleep(Math.max(0, startedMs + fault.atMs - performance.now()), undefined, { signal });
        const done = this.#strike(fault, (spell) => spells.push(spell), signal);
        const injected = { fault, done };
        this.injected.push(injected);
        this.#onFault(injected);
      }
    } finally {
      await Promise.all(spells);
      for (const name of this.#shifted) writeFileSync(this.#targets.clockFileOf(name), '0');
    }
  }

  counts(): Map<FaultKind, number> {
    const counts = new Map<FaultKind, number>();
    for (const { fault, done } of this.injected)
      if (done !== undefined) counts.set(fault.kind, (counts.get(fault.kind) ?? 0) + 1);
    return counts;
  }

  #strike(fault: Fault, during: (spell: Promise<void>) => void, signal: AbortSignal): string | undefined {
    const { process, diskOf, smallDisks, clockFileOf, store, startRival } = this.#targets;
    switch (fault.kind) {
      case 'kill': {
        const service = process(fault.target);
        if (service?.pid === undefined) return undefined;
        service.kill();
        return describeFault(fault);
      }
      case 'rival-publisher':
        startRival();
        return describeFault(fault);
      case 'truncated-reads':
      case 'flipped-reads':
      case 'stale-listings':
      case 'store-errors':
      case 'slow-link': {
        if (store === undefined) return undefined;
        const { kind } = fault;
        during(this.#spell(kind, { forMs: fault.forMs, signal, set: (isOn) => store.set(kind, isOn) }));
        return describeFault(fault);
      }
      case 'flipped-at-rest':
      case 'truncated-at-rest': {
        const how = fault.kind === 'flipped-at-rest' ? 'flip' : 'cut';
        const what = spoilFile(diskOf(fault.target), { how, draw: fault.draw });
        if (what === undefined) return undefined;
        if (fault.restart) process(fault.target)?.kill();
        return `${describeFault(fault)}: ${what}`;
      }
      case 'full-disk': {
        const disk = smallDisks.get(fault.target);
        if (disk === undefined) return undefined;
        const set = (isOn: boolean): void => (isOn ? disk.fill() : disk.free());
        during(this.#spell(`disk of ${fault.target}`, { forMs: fault.forMs, signal, set }));
        return describeFault(fault);
      }
      case 'clock-jump':
        writeFileSync(clockFileOf(fault.target), String(fault.byMs));
        this.#shifted.add(fault.target);
        return describeFault(fault);
      default:
        fault satisfies never;
        return undefined;
    }
  }

  async #spell(
    name: string,
    { forMs, signal, set }: { forMs: number; signal: AbortSignal; set: (isOn: boolean) => void },
  ): Promise<void> {
    this.#lasting.set(name, (this.#lasting.get(name) ?? 0) + 1);
    set(true);
    await sleep(forMs, undefined, { signal }).catch(() => undefined);
    const left = (this.#lasting.get(name) ?? 1) - 1;
    this.#lasting.set(name, left);
    if (left === 0) set(false);
  }
}
