/** What the package exports: a run's config, and the error that every failure is. All else is private. */
export { HoneError } from './domain/errors.ts';
export type { HoneErrorCode } from './domain/errors.ts';
export { defineRun } from './run/config.ts';
export type { RunConfigInput } from './run/config.ts';
