/** How a failure of the file system reads when it is a weight store's: the action, the path and what to look at. */
import { HoneError, reasonOf } from '../../domain/errors.ts';

export function fileFailure(action: string, path: string, error: unknown): HoneError {
  if (error instanceof HoneError) return error;
  return new HoneError('store-failed', `Could not ${action} ${path}: ${reasonOf(error)}.`, {
    cure: 'Check that the weight store is a readable and writable directory on a disk that is mounted.',
    cause: error,
  });
}
