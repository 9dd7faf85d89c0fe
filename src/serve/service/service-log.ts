/**
 * What a service did, as JSON Lines: one event a line, appended and never rewritten, so that the story of a fleet can be put
 * together and checked afterwards. Without a path events go nowhere. Invariant: a line is written whole or not at all as long as
 * the disk takes it; a full disk loses events, counted in `lost`, and never stops the service.
 */
import { closeSync, openSync, writeSync } from 'node:fs';

import { HoneError, reasonOf } from '../../domain/errors.ts';

export interface ServiceEvent {
  /** Noun-verb: `weights-committed`, `replica-lost`. */
  readonly event: string;
  readonly [field: string]: unknown;
}

export interface ServiceLogOptions {
  readonly path: string | undefined;
  /** Written into every line: which service, and which one of them. */
  readonly service: 'replica' | 'router' | 'controller' | 'publisher' | 'client';
  readonly id: string;
  /** Wall-clock milliseconds since 1970. */
  readonly wallMs: () => number;
}

export class ServiceLog {
  readonly #options: ServiceLogOptions;
  #descriptor: number | undefined;
  /** Events that the disk did not take. */
  lost = 0;

  constructor(options: ServiceLogOptions) {
    this.#options = options;
    if (options.path === undefined) return;
    try {
      this.#descriptor = openSync(options.path, 'a');
    } catch (error) {
      throw new HoneError('invalid-config', `The event log ${options.path} cannot be opened: ${reasonOf(error)}.`, {
        cure: 'Name a file in a folder that exists and can be written to.',
        cause: error,
      });
    }
  }

  append(event: ServiceEvent): void {
    if (this.#descriptor === undefined) return;
    const { service, id, wallMs } = this.#options;
    const line = `${JSON.stringify({ time: wallMs(), service, id, pid: process.pid, ...event })}\n`;
    try {
      writeSync(this.#descriptor, line);
    } catch {
      this.lost += 1;
    }
  }

  close(): void {
    if (this.#descriptor !== undefined) closeSync(this.#descriptor);
    this.#descriptor = undefined;
  }
}
