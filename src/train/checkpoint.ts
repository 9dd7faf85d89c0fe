/**
 * A trainer checkpoint: one safetensors file with the f32 master weights, both AdamW moments and the counters.
 * Invariant: the file is whole or absent, and step n + 1 after a restore has the bits of an uninterrupted run.
 */
import { HoneError } from '../domain/errors.ts';
import { readSafetensors, writeSafetensors } from '../tensor/safetensors.ts';
import type { TensorData } from '../tensor/safetensors.ts';

export interface TrainerState {
  /** Optimizer steps taken; equals the policy version. */
  readonly step: number;
  readonly master: ReadonlyMap<string, Float32Array>;
  readonly firstMoment: ReadonlyMap<string, Float32Array>;
  readonly secondMoment: ReadonlyMap<string, Float32Array>;
}

const PARTS = { master: 'master.', firstMoment: 'adam.m.', secondMoment: 'adam.v.' } as const;

export async function saveCheckpoint(path: string, state: TrainerState): Promise<void> {
  const tensors = new Map<string, TensorData>();
  for (const part of ['master', 'firstMoment', 'secondMoment'] as const)
    for (const [name, values] of state[part]) tensors.set(`${PARTS[part]}${name}`, { dtype: 'F32', shape: [values.length], bytes: new Uint8Array(values.buffer, values.byteOffset, values.byteLength) });
  await writeSafetensors(path, tensors, { format: 'hone-checkpoint-1', step: String(state.step) });
}

export async function loadCheckpoint(path: string): Promise<TrainerState> {
  const { metadata, tensors } = await readSafetensors(path);
  const step = Number(metadata['step']);
  if (metadata['format'] !== 'hone-checkpoint-1' || !Number.isInteger(step))
    throw new HoneError('invalid-safetensors', `${path} is not a trainer checkpoint.`, { cure: 'Resume from a run folder that this version of hone wrote.' });
  const part = (prefix: string): Map<string, Float32Array> =>
    new Map(
      [...tensors]
        .filter(([name]) => name.startsWith(prefix))
        // Copied, so that the view is aligned and owns its memory.
        .map(([name, { bytes }]) => [name.slice(prefix.length), new Float32Array(bytes.slice().buffer)]),
    );
  return { step, master: part(PARTS.master), firstMoment: part(PARTS.firstMoment), secondMoment: part(PARTS.secondMoment) };
}
