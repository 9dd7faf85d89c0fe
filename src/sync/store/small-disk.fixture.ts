/** A disk of 1 MiB for tests that fill one, where this process may mount it (root on Linux); undefined elsewhere. */
import { execFileSync } from 'node:child_process';

export interface SmallDisk extends Disposable {
  /** Makes room while files stay. */
  grow(): void;
}

export function mountSmallDisk(path: string): SmallDisk | undefined {
  if (process.platform !== 'linux' || process.getuid?.() !== 0) return undefined;
  const mount = (options: string): void =>
    void execFileSync('mount', ['-t', 'tmpfs', '-o', options, 'hone-test', path], { stdio: 'ignore' });
  try {
    mount('size=1m');
  } catch {
    return undefined;
  }
  return { grow: () => mount('remount,size=8m'), [Symbol.dispose]: () => void execFileSync('umount', [path]) };
}
