/**
 * What a bare verdict says to a person: the default severity, title and description of each kind of bug.
 * A sweep's model answers with a category only; this table makes a finding of it.
 */
import type { Finding } from '../../domain/finding.ts';
import type { BugCategory, Severity } from '../../domain/task.ts';

const TEXTS: Readonly<Record<BugCategory, readonly [severity: Severity, title: string, description: string]>> = {
  'negated-condition': [
    'high',
    'Condition is inverted',
    'The change negates the condition, so the branches run in the opposite cases.',
  ],
  'wrong-comparison': [
    'high',
    'Wrong comparison operator',
    'The comparison after the change accepts or refuses other values than intended.',
  ],
  'wrong-logic': [
    'high',
    'Wrong logical operator',
    'The change combines the conditions with the wrong logical operator.',
  ],
  'wrong-arithmetic': ['high', 'Wrong arithmetic operator', 'The change computes with the wrong arithmetic operator.'],
  'off-by-one': ['medium', 'Off by one', 'The bound or index after the change is one too high or too low.'],
  'wrong-variable': ['high', 'Wrong variable', 'The change uses another variable than the one that belongs here.'],
  'wrong-boolean': [
    'medium',
    'Wrong boolean value',
    'The boolean value after the change is the opposite of what is needed.',
  ],
  'wrong-method': ['high', 'Wrong method', 'The change calls a method that does something else than is needed here.'],
  'swapped-operands': [
    'high',
    'Operands are swapped',
    'The change exchanges the operands of an operation whose order matters.',
  ],
  'missing-return': ['high', 'Result is not returned', 'The change drops the return, so callers get undefined.'],
  'missing-guard': ['high', 'Guard is missing', 'The change drops a check that protected the code after it.'],
  'swapped-arguments': [
    'high',
    'Arguments are in the wrong order',
    "The order of the arguments after the change contradicts the callee's parameters.",
  ],
  'missing-await': [
    'high',
    'Promise is not awaited',
    'The callee is asynchronous, and the change uses its promise without waiting for the result.',
  ],
  'unknown-property': [
    'high',
    'Property does not exist',
    'The property after the change is not declared by the type or class.',
  ],
  'contradicted-constant': [
    'medium',
    'Value contradicts its declaration',
    'The value after the change differs from the declared constant or documented default.',
  ],
};

export function findingFromVerdict(file: string, line: number, category: BugCategory): Finding {
  const [severity, title, description] = TEXTS[category];
  return { file, startLine: line, endLine: line, severity, category, title, description };
}
