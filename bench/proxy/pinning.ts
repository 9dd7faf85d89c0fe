/**
 * Who runs on which processor core: the side under test on one of its own, whoever drives it and answers it on another, so that neither
 * takes the other's time. Where there is no `taskset`, or one core alone, the operating system places all of them, and the report says so.
 */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import process from 'node:process';

export interface Pinning {
  /** For the report. */
  readonly description: string;
  /** Words before a command of the side under test. */
  readonly underTest: readonly string[];
  /** Words before a command that drives or answers it. */
  readonly beside: readonly string[];
}

const UNPINNED = { underTest: [], beside: [] };

/** Places this process, with all its threads, beside the side under test. */
export function pinThisProcess(): Pinning {
  const [first, second] = allowedCores();
  if (first === undefined || second === undefined)
    return { ...UNPINNED, description: 'not pinned: this process may use one core alone' };
  try {
    execFileSync('taskset', ['-a', '-c', '-p', String(second), String(process.pid)], { stdio: 'ignore' });
  } catch {
    return { ...UNPINNED, description: 'not pinned: there is no taskset, or it may not' };
  }
  return {
    description: `proxies pinned to core ${first}, client and stand-in replica to core ${second}`,
    underTest: ['taskset', '-c', String(first)],
    beside: ['taskset', '-c', String(second)],
  };
}

/** Of this process, by Linux; empty elsewhere. */
function allowedCores(): number[] {
  let status: string;
  try {
    status = readFileSync('/proc/self/status', 'utf8');
  } catch {
    return [];
  }
  const list = /^Cpus_allowed_list:\s*(\S+)$/mu.exec(status)?.[1] ?? '';
  return list.split(',').flatMap((range) => {
    const [from = Number.NaN, to = from] = range.split('-').map(Number);
    return Array.from({ length: to - from + 1 }, (_, index) => from + index);
  });
}
