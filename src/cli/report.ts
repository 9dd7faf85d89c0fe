/** `hone report`: one self-contained HTML page of a run. */
import { HoneError } from '../domain/errors.ts';
import { readResults, writeCurves, writeReport } from '../run/report-page.ts';

export function report(runPath: string, options: Record<string, unknown>): void {
  if (options['json'] === true) {
    const { table } = readResults(runPath);
    if (table === undefined)
      throw new HoneError('invalid-config', `${runPath} has no results yet.`, {
        cure: 'Let the run finish, or resume it; hone report without --json draws its curves so far.',
      });
    process.stdout.write(`${JSON.stringify(table)}\n`);
    return;
  }
  const svg = options['svg'];
  if (typeof svg === 'string') {
    writeCurves(runPath, svg);
    process.stdout.write(`written to ${svg}\n`);
    return;
  }
  const out = options['out'];
  process.stdout.write(`written to ${writeReport(runPath, typeof out === 'string' ? out : undefined)}\n`);
}
