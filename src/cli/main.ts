/**
 * Runs the command line. Errors become one sentence with the cure and a non-zero exit here, and nowhere else.
 */
import { CommanderError } from 'commander';

import { HoneError } from '../domain/errors.ts';
import { program } from './program.ts';

try {
  await program.parseAsync();
} catch (error) {
  if (error instanceof CommanderError) process.exitCode = error.exitCode;
  else {
    report(error);
    process.exitCode = process.exitCode ?? 1;
    if (process.exitCode === 0) process.exitCode = 1;
  }
}

function report(error: unknown): void {
  if (error instanceof HoneError)
    process.stderr.write(`hone: ${error.message}${error.cure === undefined ? '' : ` ${error.cure}`}\n`);
  else process.stderr.write(`hone: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
  if (error instanceof HoneError && error.cause instanceof Error && process.env['HONE_DEBUG'] !== undefined)
    process.stderr.write(`${error.cause.stack}\n`);
}
