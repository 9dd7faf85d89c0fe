/** What a chaos run prints at its end: faults by kind, what the fleet did meanwhile, and one verdict. Owns the words only. */
import type { LogLine } from '../../examples/three-clusters/event-log.ts';
import type { InjectedFault } from './fault-injector.ts';
import type { Fault } from './fault-plan.ts';
import { INVARIANTS, type Breach, type InvariantName } from './invariants.ts';

/** The verdict on each invariant, and the lines that show each breach. */
export function verdictText(breaches: readonly Breach[], shownLines = 6): string {
  const names = Object.keys(INVARIANTS) as InvariantName[]; // Object.keys gives strings; these are the keys of that object.
  const lines: string[] = [];
  for (const name of names) {
    const broken = breaches.filter(({ invariant }) => invariant === name);
    lines.push(`${broken.length === 0 ? 'held  ' : 'BROKEN'}  ${INVARIANTS[name]}`);
    for (const { sentence, lines: shown } of broken.slice(0, 5)) {
      lines.push(`        ${sentence}`);
      for (const line of shown.slice(0, shownLines)) lines.push(`          ${lineText(line)}`);
    }
    if (broken.length > 5) lines.push(`        and ${broken.length - 5} more`);
  }
  return lines.join('\n');
}

function lineText({ file, line, text }: LogLine): string {
  return `${file}:${line} ${text.length > 240 ? `${text.slice(0, 240)}…` : text}`;
}

/** A row a kind of fault, kills by service: how many struck, and how many were planned. */
export function faultCounts(
  plan: readonly Fault[],
  injected: readonly InjectedFault[],
): { what: string; injected: number; planned: number }[] {
  const nameOf = (fault: Fault): string => (fault.kind === 'kill' ? `kill -9 of a ${fault.service}` : fault.kind);
  const counts = new Map<string, { injected: number; planned: number }>();
  const countOf = (fault: Fault): { injected: number; planned: number } => {
    const known = counts.get(nameOf(fault)) ?? { injected: 0, planned: 0 };
    counts.set(nameOf(fault), known);
    return known;
  };
  for (const fault of plan) countOf(fault).planned += 1;
  for (const { fault, done } of injected) if (done !== undefined) countOf(fault).injected += 1;
  const rows = [...counts]
    .map(([what, count]) => ({ what, ...count }))
    .toSorted((one, other) => (one.what < other.what ? -1 : 1));
  const total = (key: 'injected' | 'planned'): number => rows.reduce((sum, row) => sum + row[key], 0);
  return [...rows, { what: 'all', injected: total('injected'), planned: total('planned') }];
}
