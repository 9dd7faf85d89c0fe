/**
 * The engine of a replica, loaded with what its disk holds. Invariant: the checksums that come back are those of the bytes that the
 * engine was given.
 */
import { policyVersion } from '../domain/ids.ts';
import type { TensorCodec } from '../sync/delta/delta-codec.ts';
import type { FolderWeights } from '../sync/folder-weights.ts';
import type { HeldVersion } from '../sync/local-weights.ts';
import { EmbeddedPolicy } from './embedded-policy.ts';
import { loadTensors, type BootModel } from './replica-boot.ts';
import type { ReplicaServiceOptions } from './replica-options.ts';

/** The held weights, or the boot model while those are dirty: then the reconciler seeds them anew, and nothing is served before. */
export async function startEngine(
  options: ReplicaServiceOptions,
  { codec, boot, weights }: { codec: TensorCodec; boot: BootModel; weights: FolderWeights },
): Promise<{ policy: EmbeddedPolicy; served: HeldVersion; source: 'folder' | 'boot' }> {
  if (weights.held === undefined && options.openSource === undefined) await weights.restoreBoot();
  const { held } = weights;
  const tensors = held === undefined ? boot.tensors : weights.tensors;
  const loaded = await loadTensors(codec, tensors, held?.checksums);
  const policy = await EmbeddedPolicy.start({
    configJson: boot.configJson,
    served: loaded,
    version: held?.version ?? policyVersion(0),
    build: options.build,
    threads: options.threads,
    slots: options.slots,
    inFlight: options.inFlight,
    ...(options.contextLength === undefined ? {} : { contextLength: options.contextLength }),
  });
  if (held !== undefined) return { policy, served: held, source: weights.openedFrom };
  const checksums = new Map<string, string>();
  for (const [name, bytes] of loaded) checksums.set(name, await codec.checksum({ kind: 'memory', bytes }));
  return { policy, served: { runId: undefined, version: policyVersion(0), checksums }, source: 'boot' };
}
