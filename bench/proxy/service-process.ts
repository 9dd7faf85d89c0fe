/** A service of the benchmark in a process of its own: where it listens, and the processor time that it used. */
import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import process from 'node:process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

export interface Address {
  readonly url: string;
  readonly controlUrl?: string;
}

const running = new Set<ChildProcess>();
// Nothing stays behind a benchmark that ends in an error.
process.once('exit', () => {
  for (const child of running) child.kill('SIGKILL');
});

export class ServiceProcess implements AsyncDisposable {
  readonly #child: ChildProcess;
  readonly address: Address;

  private constructor(child: ChildProcess, address: Address) {
    this.#child = child;
    this.address = address;
  }

  /** `script` relative to this folder, `placement` words before the command; resolves with the first line of JSON that it prints. */
  static async start(
    script: string,
    words: readonly string[],
    { placement = [] }: { placement?: readonly string[] } = {},
  ): Promise<ServiceProcess> {
    const file = fileURLToPath(new URL(script, import.meta.url));
    const [command = '', ...rest] = [...placement, process.execPath, file, ...words];
    const child = spawn(command, rest, { stdio: ['ignore', 'pipe', 'inherit'] });
    running.add(child);
    child.once('exit', () => running.delete(child));
    const line = await Promise.race([
      once(createInterface({ input: child.stdout }), 'line').then(([text]) => String(text)),
      once(child, 'exit').then(([code]) => {
        throw new Error(`${script} ended with ${String(code)} before it listened`);
      }),
    ]);
    // What the script prints is written beside it.
    return new ServiceProcess(child, JSON.parse(line) as Address);
  }

  /** User and system time so far, in milliseconds: exact, but told in Linux' ticks of 10 ms. */
  cpuMs(): number {
    const fields = readFileSync(`/proc/${this.#child.pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? [];
    return (Number(fields[11]) + Number(fields[12])) * 10;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#child.exitCode !== null) return;
    const ended = once(this.#child, 'exit');
    this.#child.kill('SIGKILL');
    await ended;
  }
}
