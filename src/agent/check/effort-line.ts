/**
 * How a model is told the level of effort that it works at: one line at the top of its opening message, so that one policy
 * can learn to spend differently at each. Invariant: no level, no byte, as models are trained on prompts without one.
 */
import type { Effort } from '../../domain/effort.ts';

/** `effort: low` and a line break; empty where no level is told. */
export function effortLine(effort: Effort | undefined): string {
  return effort === undefined ? '' : `effort: ${effort}\n`;
}
