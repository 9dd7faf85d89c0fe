/**
 * Effort: how much an agent is asked to spend on a task, as a named level. A policy has one frontier of success against
 * cost for each level, so references, prices and measurements are kept by effort. Names are the owner's.
 */
import { z } from 'zod';

export const effortSchema = z
  .string()
  .regex(/^[a-z][a-z0-9-]*$/u, 'lower-case letters, digits and dashes only, a letter first')
  // Efforts are keys of plain objects, and every such object has a constructor.
  .refine((name) => name !== 'constructor', 'constructor is taken by the language: choose another name');
export type Effort = z.infer<typeof effortSchema>;

/** The only level of a run that names none. */
export const STANDARD_EFFORT: Effort = 'standard';
