/**
 * The sampler's key-value cache: a fixed number of slots, each one sequence's rows in every layer. Finished slots keep
 * their rows, so that the next turn of a conversation, or the next rollout of a group, starts where the tokens differ.
 * Invariant: rows are reused only when all of them were computed by the weights that are current now (`epoch`).
 */
import type { ModelConfig } from './config.ts';
import type { Engine } from './engine.ts';

export interface Slot {
  readonly index: number;
  /** Tokens whose rows are, or are about to be, in the cache. */
  readonly tokens: Int32Array;
  /** Rows that are computed. */
  rows: number;
  /** Tokens that are known: the prompt and what was sampled. */
  length: number;
  /** Weights epoch that computed row 0; rows may be reused only while it is the current one. */
  epoch: number;
  busy: boolean;
  lastUsed: number;
}

/** A shorter common prefix is computed again: copying it would cost more than it saves. */
const MIN_SHARED_ROWS = 8;

export class CacheSlots {
  readonly contextLength: number;
  readonly #slots: readonly Slot[];
  readonly #engine: Engine;
  readonly #layers: number;
  readonly #rowFloats: number;
  readonly #slotFloats: number;
  readonly #base: number;
  #clock = 0;

  constructor(engine: Engine, config: ModelConfig, options: { slots: number; contextLength: number }) {
    const { slots, contextLength } = options;
    this.contextLength = contextLength;
    this.#engine = engine;
    this.#layers = config.layers;
    this.#rowFloats = config.kvHeads * config.headDim;
    this.#slotFloats = Math.ceil(contextLength / 8) * 8 * this.#rowFloats;
    this.#base = engine.allocFloats(config.layers * 2 * slots * this.#slotFloats);
    this.#slots = Array.from({ length: slots }, (_, index) => ({
      index,
      tokens: new Int32Array(contextLength),
      rows: 0,
      length: 0,
      epoch: -1,
      busy: false,
      lastUsed: 0,
    }));
  }

  /** Byte address of a layer's keys; a slot's rows begin at its `offset` there. */
  keys(layer: number): number {
    return this.#base + layer * 2 * this.#layerBytes;
  }

  values(layer: number): number {
    return this.keys(layer) + this.#layerBytes;
  }

  get #layerBytes(): number {
    return this.#slots.length * this.#slotFloats * 4;
  }

  /** In floats, as the kernels take it. */
  offset(slot: Slot): number {
    return slot.index * this.#slotFloats;
  }

  /**
   * A slot for a prompt, filled as far as rows can be reused (never its last token, whose logits are needed).
   * `none`: every slot is busy. `wait`: a busy slot is about to compute rows that this prompt shares.
   */
  acquire(prompt: Int32Array, epoch: number): Slot | 'none' | 'wait' {
    let source: Slot | undefined;
    let shared = 0;
    let soon = 0;
    let victim: Slot | undefined;
    for (const slot of this.#slots) {
      if (!slot.busy && (victim === undefined || staleness(slot, epoch) < staleness(victim, epoch))) victim = slot;
      if (slot.epoch !== epoch) continue;
      const common = commonPrefix(slot, prompt);
      const ready = Math.min(common, slot.rows);
      if (slot.busy) soon = Math.max(soon, common);
      // Of equals, an idle slot can be continued in place.
      if (ready > shared || (ready === shared && source?.busy === true && !slot.busy)) {
        source = slot;
        shared = ready;
      }
    }
    if (victim === undefined) return 'none';
    if (soon >= shared + MIN_SHARED_ROWS) return 'wait';
    if (source === undefined || shared < MIN_SHARED_ROWS) shared = 0;
    let slot = victim;
    if (source !== undefined && shared > 0) {
      const continues = !source.busy && shared * 2 >= source.rows;
      if (continues) slot = source;
      else if (slot !== source) this.#copyRows(source, slot, shared);
    }
    slot.tokens.set(prompt);
    slot.length = prompt.length;
    slot.rows = shared;
    slot.epoch = epoch;
    slot.busy = true;
    return slot;
  }

  /** Keeps the rows for reuse. */
  free(slot: Slot): void {
    slot.busy = false;
    slot.length = slot.rows;
    slot.lastUsed = ++this.#clock;
  }

  #copyRows(from: Slot, to: Slot, rows: number): void {
    const bytes = Math.ceil(rows / 8) * 8 * this.#rowFloats * 4;
    for (let layer = 0; layer < this.#layers; layer++)
      for (const base of [this.keys(layer), this.values(layer)])
        this.#engine.copy(base + this.offset(to) * 4, base + this.offset(from) * 4, bytes);
  }
}

/** Rows of another epoch go first, then those not used for longest. */
function staleness(slot: Slot, epoch: number): number {
  return slot.epoch === epoch ? slot.lastUsed : -1;
}

function commonPrefix(slot: Slot, prompt: Int32Array): number {
  const most = Math.min(slot.length, prompt.length - 1);
  let common = 0;
  while (common < most && slot.tokens[common] === prompt[common]) common++;
  return common;
}
