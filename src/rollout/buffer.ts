/**
 * The data buffer: every admitted group and every finished rollout of a run, in SQLite: raw outcomes and costs, no rewards.
 * Invariant: a finished rollout is stored before anything else learns of it, and a group counts as trained exactly when
 * the checkpoint's step is at or past the step that it was assigned to. So whatever moment the process dies at,
 * `recover(checkpointStep)` leaves no finished rollout lost and none trained twice.
 */
import { DatabaseSync } from 'node:sqlite';
import type { SQLInputValue, StatementSync } from 'node:sqlite';
import { deserialize, serialize } from 'node:v8';

import { HoneError, reasonOf } from '../domain/errors.ts';
import { groupId, policyVersion } from '../domain/ids.ts';
import type { GroupId, PolicyVersion } from '../domain/ids.ts';
import type { Rollout } from '../domain/rollout.ts';
import { taskSchema } from '../domain/task.ts';
import type { Task } from '../domain/task.ts';

/** open = rollouts missing; ready = waiting for a batch; assigned = in a step's batch; the last two are final. */
export type GroupState = 'open' | 'ready' | 'assigned' | 'trained' | 'dropped';

export interface BufferedGroup {
  /** Place in the run's stream of tasks, from 0. */
  readonly ordinal: number;
  readonly id: GroupId;
  readonly task: Task;
  readonly admittedVersion: PolicyVersion;
  readonly rollouts: readonly Rollout[];
}

/** What finished since the last batch, and so is in no step's measurements yet. */
export interface Unmeasured {
  readonly observed: { task: Task; rollout: Rollout }[];
  readonly dropped: Record<string, number>;
  /** Groups that finished, and how many of them had variance. */
  readonly finished: number;
  readonly varied: number;
}

export interface BufferCounts {
  readonly admitted: number;
  readonly trained: number;
  readonly dropped: Readonly<Record<string, number>>;
}

const SCHEMA = `
  CREATE TABLE IF NOT EXISTS groups (
    ordinal INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, task TEXT NOT NULL, admitted_version INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'ready', 'assigned', 'trained', 'dropped')),
    reason TEXT, step INTEGER
  ) STRICT;
  CREATE INDEX IF NOT EXISTS groups_by_state ON groups (state, ordinal);
  CREATE TABLE IF NOT EXISTS rollouts (
    id TEXT PRIMARY KEY, ordinal INTEGER NOT NULL REFERENCES groups (ordinal), attempt INTEGER NOT NULL,
    status TEXT NOT NULL, payload BLOB NOT NULL, step INTEGER, UNIQUE (ordinal, attempt)
  ) STRICT;
  CREATE INDEX IF NOT EXISTS rollouts_unmeasured ON rollouts (ordinal) WHERE step IS NULL;`;

export class RolloutBuffer {
  readonly #database: DatabaseSync;
  readonly #insertGroup: StatementSync;
  readonly #insertRollout: StatementSync;
  readonly #setState: StatementSync;

  private constructor(database: DatabaseSync) {
    this.#database = database;
    this.#insertGroup = database.prepare(
      `INSERT INTO groups (ordinal, id, task, admitted_version, state) VALUES (?, ?, ?, ?, 'open')`,
    );
    this.#insertRollout = database.prepare(
      `INSERT INTO rollouts (id, ordinal, attempt, status, payload) VALUES (?, ?, ?, ?, ?)`,
    );
    this.#setState = database.prepare(`UPDATE groups SET state = ?, reason = ?, step = ? WHERE ordinal = ?`);
  }

  /** `path` may be ':memory:'. */
  static open(path: string): RolloutBuffer {
    try {
      const database = new DatabaseSync(path);
      database.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;');
      database.exec(SCHEMA);
      return new RolloutBuffer(database);
    } catch (cause) {
      throw new HoneError('store-failed', `The rollout buffer ${path} could not be opened.`, {
        cure: 'Check that the run folder is writable and its disk not full.',
        cause,
      });
    }
  }

  admit(ordinal: number, id: GroupId, task: Task, version: PolicyVersion): void {
    this.#write(this.#insertGroup, ordinal, id, JSON.stringify(task), version);
  }

  addRollout(ordinal: number, rollout: Rollout): void {
    this.#write(this.#insertRollout, rollout.id, ordinal, rollout.attempt, rollout.status, serialize(rollout));
  }

  markReady(ordinal: number): void {
    this.#write(this.#setState, 'ready', null, null, ordinal);
  }

  drop(ordinal: number, reason: string): void {
    this.#write(this.#setState, 'dropped', reason, null, ordinal);
  }

  /** Binds the groups to a step before that step trains, and what finished since the last batch to its measurements: all or none. */
  assign(step: number, ordinals: readonly number[]): void {
    // On the disk before the step's checkpoint is, or a power cut could leave weights that were trained on groups that look untrained.
    this.#database.exec('PRAGMA synchronous = FULL');
    this.#transaction(() => {
      for (const ordinal of ordinals) this.#write(this.#setState, 'assigned', null, step, ordinal);
      this.#write(this.#database.prepare('UPDATE rollouts SET step = ? WHERE step IS NULL'), step);
      this.#write(this.#database.prepare(`UPDATE groups SET step = ? WHERE state = 'dropped' AND step IS NULL`), step);
    });
    this.#database.exec('PRAGMA synchronous = NORMAL');
  }

  /** To be called once the checkpoint of `step` is durable. */
  markTrained(step: number): void {
    this.#write(
      this.#database.prepare(`UPDATE groups SET state = 'trained' WHERE state = 'assigned' AND step <= ?`),
      step,
    );
  }

  /** After a restart from the checkpoint of `checkpointStep`: what was assigned past it has not been trained. */
  recover(checkpointStep: number): { requeued: number } {
    return this.#transaction(() => {
      this.markTrained(checkpointStep);
      this.#database.prepare('UPDATE rollouts SET step = NULL WHERE step > ?').run(checkpointStep);
      this.#database.prepare(`UPDATE groups SET step = NULL WHERE state = 'dropped' AND step > ?`).run(checkpointStep);
      const late = this.#database
        .prepare(`UPDATE groups SET state = 'ready', step = NULL WHERE state IN ('assigned', 'trained') AND step > ?`)
        .run(checkpointStep);
      return { requeued: Number(late.changes) };
    });
  }

  groups(state: GroupState): BufferedGroup[] {
    const rows = this.#database
      .prepare('SELECT ordinal, id, task, admitted_version AS version FROM groups WHERE state = ? ORDER BY ordinal')
      .all(state);
    return rows.map((row) => {
      const ordinal = Number(row['ordinal']);
      return {
        ordinal,
        id: groupId(String(row['id'])),
        task: taskSchema.parse(JSON.parse(String(row['task']))),
        admittedVersion: policyVersion(Number(row['version'])),
        rollouts: this.#rollouts(ordinal),
      };
    });
  }

  unmeasured(): Unmeasured {
    const rows = this.#database
      .prepare(
        'SELECT task, payload FROM rollouts JOIN groups USING (ordinal) WHERE rollouts.step IS NULL ORDER BY rollouts.id',
      )
      .all();
    const dropped: Record<string, number> = {};
    for (const row of this.#database
      .prepare(`SELECT reason, COUNT(*) AS n FROM groups WHERE state = 'dropped' AND step IS NULL GROUP BY reason`)
      .all())
      dropped[String(row['reason'])] = Number(row['n']);
    // A group whose rollouts were not all measured has finished since.
    const finished = (states: string): number =>
      Number(
        this.#database
          .prepare(
            `SELECT COUNT(*) AS n FROM groups WHERE state IN (${states}) AND ordinal IN (SELECT ordinal FROM rollouts WHERE step IS NULL)`,
          )
          .get()?.['n'] ?? 0,
      );
    return {
      observed: rows.map((row) => ({
        task: taskSchema.parse(JSON.parse(String(row['task']))),
        rollout: deserialize(row['payload'] as Uint8Array) as Rollout,
      })),
      dropped,
      finished: finished(`'ready', 'dropped'`),
      varied: finished(`'ready'`),
    };
  }

  /** Groups of one step's batch, for audits and replays. */
  stepGroups(step: number): { ordinal: number; rollouts: Rollout[] }[] {
    const rows = this.#database
      .prepare(`SELECT ordinal FROM groups WHERE step = ? AND state IN ('assigned', 'trained') ORDER BY ordinal`)
      .all(step);
    return rows.map((row) => ({ ordinal: Number(row['ordinal']), rollouts: this.#rollouts(Number(row['ordinal'])) }));
  }

  nextOrdinal(): number {
    const row = this.#database.prepare('SELECT COALESCE(MAX(ordinal) + 1, 0) AS next FROM groups').get();
    return Number(row?.['next'] ?? 0);
  }

  counts(): BufferCounts {
    const count = (where: string): number =>
      Number(this.#database.prepare(`SELECT COUNT(*) AS n FROM groups ${where}`).get()?.['n'] ?? 0);
    const dropped: Record<string, number> = {};
    for (const row of this.#database
      .prepare(`SELECT reason, COUNT(*) AS n FROM groups WHERE state = 'dropped' GROUP BY reason ORDER BY reason`)
      .all())
      dropped[String(row['reason'])] = Number(row['n']);
    return { admitted: count(''), trained: count(`WHERE state = 'trained'`), dropped };
  }

  close(): void {
    this.#database.close();
  }

  #rollouts(ordinal: number): Rollout[] {
    const rows = this.#database.prepare('SELECT payload FROM rollouts WHERE ordinal = ? ORDER BY attempt').all(ordinal);
    // The payload was written by addRollout; segments are checked again before they are trained.
    return rows.map((row) => deserialize(row['payload'] as Uint8Array) as Rollout);
  }

  #write(statement: StatementSync, ...values: SQLInputValue[]): void {
    try {
      statement.run(...values);
    } catch (cause) {
      throw writeFailure(cause);
    }
  }

  #transaction<T>(body: () => T): T {
    this.#database.exec('BEGIN IMMEDIATE');
    try {
      const result = body();
      this.#database.exec('COMMIT');
      return result;
    } catch (error) {
      // A full disk rolls back by itself.
      if (this.#database.isTransaction) this.#database.exec('ROLLBACK');
      throw error instanceof HoneError ? error : writeFailure(error);
    }
  }
}

function writeFailure(cause: unknown): HoneError {
  return new HoneError('store-failed', `The rollout buffer could not be written: ${reasonOf(cause)}.`, {
    cure: 'Make room on the disk of the run folder, then go on with --resume; what was stored before is whole.',
    cause,
  });
}
