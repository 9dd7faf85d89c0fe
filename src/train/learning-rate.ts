/** The learning rate of a step: a linear warm-up, and a power law down from there where one is asked for. */

export interface LearningRateSchedule {
  /** Peak. */
  readonly learningRate: number;
  /** Steps until the peak; 0 = none. */
  readonly warmupSteps: number;
  /** x (1 + (step - 1) / steps)^-power; null = none. */
  readonly learningRateDecay: { readonly steps: number; readonly power: number } | null;
}

/** `step` counts from 1. */
export function learningRateAt(schedule: LearningRateSchedule, step: number): number {
  const { learningRate, warmupSteps, learningRateDecay: decay } = schedule;
  const warm = learningRate * Math.min(1, step / Math.max(1, warmupSteps));
  return decay === null ? warm : warm * (1 + (step - 1) / decay.steps) ** -decay.power;
}
