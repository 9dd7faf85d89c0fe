/**
 * What is left of a fleet's run for the checker: the event logs of all services and clients, what the data buffer holds, and what was
 * watched from outside.
 */
import { z } from 'zod';

import type { LogLine } from '../../examples/three-clusters/event-log.ts';

/** One finished generation that was computed again from the published bytes. */
export interface ReplayedRequest {
  readonly request: string;
  readonly outcome: 'equal' | 'different';
  /** What differs, in words. */
  readonly detail?: string;
}

/** The end of the run, seen from outside on a clock that does not jump. */
export interface Convergence {
  readonly boundMs: number;
  /** From the last fault's end until every replica served `target` and every service was up; undefined = it did not come to that. */
  readonly tookMs: number | undefined;
  /** The newest version that was visible when the faults stopped. */
  readonly target: number;
  readonly replicas: readonly { readonly id: string; readonly version: number | undefined; readonly state: string }[];
}

export interface FleetRecord {
  readonly lines: readonly LogLine[];
  /** Ids of the rollouts that the data buffer holds, in its order. */
  readonly bufferIds: readonly string[];
  /** Checksum over all tensors of each version, worked out anew; every seed that may have published it counts. */
  readonly trueChecksums: ReadonlyMap<number, ReadonlySet<string>>;
  readonly replayed: readonly ReplayedRequest[];
  readonly convergence: Convergence;
}

const spansSchema = z.array(z.object({ version: z.number(), start: z.number(), end: z.number() }));

/** `[{ version, start, end }]`; empty when the line has none. */
export function spansIn({ fields }: LogLine): { version: number; start: number; end: number }[] {
  return spansSchema.safeParse(fields['versions']).data ?? [];
}

export function idsIn({ fields }: LogLine, key: string): readonly number[] {
  return z.array(z.number()).safeParse(fields[key]).data ?? [];
}
