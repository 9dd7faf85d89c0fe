/** What a chaos run prints at its end: faults by kind, what the fleet did meanwhile, and one verdict. Owns the words only. */
import type { LogLine } from '../../examples/three-clusters/event-log.ts';
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
