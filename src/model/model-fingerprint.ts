/**
 * A short name for what a model computes, weights aside: two folders with the same fingerprint take the same tensors and mean the same by
 * them. What only bounds or stops sampling (context length, end of sequence) is left out, as whoever samples says it anew.
 */
import { createHash } from 'node:crypto';

import type { ModelConfig } from './config.ts';

/** 16 hex digits. */
export function modelFingerprint(config: ModelConfig): string {
  const { contextLength: _context, eosTokenIds: _stops, ...computed } = config;
  const sorted = Object.entries(computed).toSorted(([one], [other]) => (one < other ? -1 : 1));
  return createHash('sha256').update(JSON.stringify(sorted)).digest('hex').slice(0, 16);
}
