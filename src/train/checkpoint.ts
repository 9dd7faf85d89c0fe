/**
 * A trainer checkpoint: one safetensors file with the f32 master weights, both AdamW moments and the counters.
 * Invariant: the file is whole or absent, and step n + 1 after a restore has the bits of an uninterrupted run.
 */
import { HoneError } from '../domain/errors.ts';
import { readSafetensors, writeSafetensors } from '../tensor/safetensors.ts';
import type { TensorData } from '../tensor/safetensors.ts';

export interface TrainerState {
  /** Policy version of the weights. */
  readonly version: number;
  /** Steps that the optimizer applied: fewer than the version when a step was refused. */
  readonly optimizerSteps: number;
  readonly master: Map<string, Float32Array>;
  readonly firstMoments: Map<string, Float32Array>;
  readonly secondMoments: Map<string, Float32Array>;
}

const FORMAT = 'hone-checkpoint-1';
const PARTS = { master: 'master.', firstMoments: 'adam.m.', secondMoments: 'adam.v.' } as const;

export async function saveCheckpoint(path: string, state: TrainerState): Promise<void> {
  const tensors = new Map<string, TensorData>();
  for (const part of ['master', 'firstMoments', 'secondMoments'] as const)
    for (const [name, values] of state[part])
      tensors.set(`${PARTS[part]}${name}`, {
        dtype: 'F32',
        shape: [values.length],
        bytes: new Uint8Array(values.buffer, values.byteOffset, values.byteLength),
      });
  await writeSafetensors(path, tensors, {
    format: FORMAT,
    version: String(state.version),
    optimizer_steps: String(state.optimizerSteps),
  });
}

export async function loadCheckpoint(path: string): Promise<TrainerState> {
  const { metadata, tensors } = await readSafetensors(path);
  const version = Number(metadata['version']);
  const optimizerSteps = Number(metadata['optimizer_steps']);
  if (metadata['format'] !== FORMAT || !Number.isInteger(version) || !Number.isInteger(optimizerSteps))
    throw new HoneError('invalid-safetensors', `${path} is not a trainer checkpoint.`, {
      cure: 'Resume from a run folder that this version of hone wrote.',
    });
  const part = (prefix: string): Map<string, Float32Array> =>
    new Map(
      [...tensors]
        .filter(([name]) => name.startsWith(prefix))
        // Copied, so that the view is aligned and owns its memory.
        .map(([name, { bytes }]) => [name.slice(prefix.length), new Float32Array(bytes.slice().buffer)]),
    );
  return {
    version,
    optimizerSteps,
    master: part(PARTS.master),
    firstMoments: part(PARTS.firstMoments),
    secondMoments: part(PARTS.secondMoments),
  };
}
