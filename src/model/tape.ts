/**
 * A small tape: operations append how to push a gradient back, and `backward` plays them in reverse.
 * A gradient buffer is made when first written and added to afterwards. Without a tape nothing is recorded, and
 * operations may overwrite what they no longer need.
 */
import type { Engine } from './engine.ts';

/** A matrix of f32 rows in engine memory; `pointer` is a byte address. */
export interface Value {
  readonly pointer: number;
  readonly rows: number;
  readonly width: number;
  /** Byte address of dLoss/dValue, 0 until something was written there. */
  gradient: number;
}

export function allocValue(engine: Engine, rows: number, width: number): Value {
  return { pointer: engine.allocFloats(rows * width), rows, width, gradient: 0 };
}

export class Tape {
  readonly #steps: (() => void)[] = [];

  record(step: () => void): void {
    this.#steps.push(step);
  }

  /** Plays the recorded steps, last first; the caller has set the gradient of the output. */
  backward(): void {
    for (let step = this.#steps.pop(); step !== undefined; step = this.#steps.pop()) step();
  }
}

/** The gradient to write into, and whether it already holds a sum to add to. */
export function openGradient(engine: Engine, value: Value): { pointer: number; holdsSum: boolean } {
  const holdsSum = value.gradient !== 0;
  if (!holdsSum) value.gradient = engine.allocFloats(value.rows * value.width);
  return { pointer: value.gradient, holdsSum };
}
