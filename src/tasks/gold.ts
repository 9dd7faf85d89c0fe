/**
 * The bugs of a task as a verifier wants them: what is wrong, how bad it is, and the patch that undoes it.
 * Invariant: a fix applies to the file after the change and gives back exactly the right line.
 */
import type { Bug, BugCategory, Severity } from '../domain/task.ts';
import type { Evidence } from './site.ts';

export interface BugFacts {
  readonly category: BugCategory;
  readonly file: string;
  /** Whole lines of the function after the change. */
  readonly lines: readonly string[];
  /** 1-based line of the file on which the function starts. */
  readonly startLine: number;
  /** 0-based line of the function that is wrong. */
  readonly at: number;
  readonly rightLine: string;
  readonly right: string;
  readonly wrong: string;
  readonly evidence?: Evidence;
}

const CONTEXT_LINES = 3;

const SEVERITY: Readonly<Record<BugCategory, Severity>> = {
  'negated-condition': 'high',
  'wrong-comparison': 'high',
  'wrong-logic': 'high',
  'wrong-arithmetic': 'high',
  'off-by-one': 'medium',
  'wrong-variable': 'high',
  'wrong-boolean': 'medium',
  'wrong-method': 'medium',
  'swapped-operands': 'high',
  'missing-return': 'high',
  'missing-guard': 'medium',
  'swapped-arguments': 'high',
  'missing-await': 'high',
  'unknown-property': 'high',
  'contradicted-constant': 'low',
};

export function describeBug(facts: BugFacts): Bug {
  const { category, at, startLine, evidence } = facts;
  const line = startLine + at;
  return {
    category,
    severity: SEVERITY[category],
    startLine: line,
    endLine: line,
    description: sentence(facts),
    fix: fixPatch(facts),
    ...(evidence === undefined ? {} : { evidence: { ...evidence } }),
  };
}

function sentence({ category, right, wrong, evidence }: BugFacts): string {
  const name = evidence?.name ?? '';
  switch (category) {
    case 'negated-condition':
      return `The condition \`${wrong}\` is the opposite of what is meant.`;
    case 'wrong-comparison':
      return `The comparison \`${wrong}\` must be \`${right}\`.`;
    case 'wrong-logic':
      return `The conditions are joined by the wrong operator: \`${wrong}\`.`;
    case 'wrong-arithmetic':
      return `The arithmetic in \`${wrong}\` uses the wrong operator.`;
    case 'off-by-one':
      return `\`${wrong}\` is off by one: it must be \`${right}\`.`;
    case 'wrong-variable':
      return `\`${wrong}\` is used where \`${right}\` is meant.`;
    case 'wrong-boolean':
      return `The flag is \`${wrong}\` where it must be \`${right}\`.`;
    case 'wrong-method':
      return `\`${wrong}\` is called where \`${right}\` is meant.`;
    case 'swapped-operands':
      return `The operands of \`${wrong}\` stand in the wrong order.`;
    case 'missing-return':
      return 'The value is computed and not returned.';
    case 'missing-guard':
      return `\`${wrong}\` is used without the check that it needs.`;
    case 'swapped-arguments':
      return `The arguments \`${wrong}\` stand in the wrong order for the parameters of ${name}.`;
    case 'missing-await':
      return `${name} is async, and its promise is not awaited.`;
    case 'unknown-property':
      return `\`${wrong}\` is not declared anywhere in the package; \`${right}\` is.`;
    case 'contradicted-constant':
      return `\`${wrong}\` contradicts what ${name} is declared or documented to be.`;
    default:
      return category satisfies never;
  }
}

/** A unified diff of one hunk, with context from the function after the change. */
function fixPatch({ file, lines, startLine, at, rightLine }: BugFacts): string {
  const first = Math.max(0, at - CONTEXT_LINES);
  const end = Math.min(lines.length, at + 1 + CONTEXT_LINES);
  const range = `${startLine + first},${end - first}`;
  let patch = `--- a/${file}\n+++ b/${file}\n@@ -${range} +${range} @@\n`;
  for (let index = first; index < end; index++) {
    const line = lines[index] ?? '';
    patch += index === at ? `-${line}\n+${rightLine}\n` : ` ${line}\n`;
  }
  return patch;
}
