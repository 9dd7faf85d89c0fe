/**
 * Sites of the bug kinds that can be judged from the function alone, but for variables and guards, each with an equivalent way of writing where
 * one exists. Invariant: operators and operands are taken from the syntax tree; operands are exchanged without a change
 * of meaning only when reading them has no effect.
 */
import { childOfKind, operands, type SyntaxNode } from '../code/syntax-tree.ts';
import type { BugCategory } from '../domain/task.ts';
import { isConditionPart } from './conditions.ts';
import type { SiteCollector } from './site-collector.ts';

const COMPARISONS: Readonly<Record<string, { wrong: string; mirrored: string }>> = {
  '<': { wrong: '<=', mirrored: '>' },
  '<=': { wrong: '<', mirrored: '>=' },
  '>': { wrong: '>=', mirrored: '<' },
  '>=': { wrong: '>', mirrored: '<=' },
  '===': { wrong: '!==', mirrored: '===' },
  '!==': { wrong: '===', mirrored: '!==' },
  '==': { wrong: '!=', mirrored: '==' },
  '!=': { wrong: '==', mirrored: '!=' },
};
const EQUALITIES = new Set(['===', '!==', '==', '!=']);
const ARITHMETIC: Readonly<Record<string, string>> = {
  '+': '-',
  '-': '+',
  '*': '/',
  '/': '*',
  '%': '*',
  '+=': '-=',
  '-=': '+=',
  '*=': '/=',
  '++': '--',
  '--': '++',
  '<<': '>>',
  '>>': '<<',
  '&': '|',
  '|': '&',
};
const NON_COMMUTATIVE = new Set(['-', '/', '%', '<', '<=', '>', '>=']);
const PURE = new Set([
  'identifier',
  'member_expression',
  'number',
  'string',
  'true',
  'false',
  'null',
  'undefined',
  'this',
  'subscript_expression',
  'unary_expression',
  'binary_expression',
  'parenthesized_expression',
]);

/** Methods of the standard library that are taken for each other. */
const METHOD_PAIRS: readonly (readonly [string, string])[] = [
  ['map', 'forEach'],
  ['filter', 'find'],
  ['some', 'every'],
  ['push', 'unshift'],
  ['pop', 'shift'],
  ['indexOf', 'lastIndexOf'],
  ['startsWith', 'endsWith'],
  ['slice', 'splice'],
  ['trimStart', 'trimEnd'],
  ['toUpperCase', 'toLowerCase'],
  ['add', 'delete'],
  ['min', 'max'],
  ['floor', 'ceil'],
  ['keys', 'values'],
  ['padStart', 'padEnd'],
  ['on', 'off'],
  ['once', 'on'],
  ['then', 'catch'],
  ['resolve', 'reject'],
  ['find', 'findIndex'],
  ['concat', 'push'],
  ['call', 'apply'],
  ['encode', 'decode'],
  ['stringify', 'parse'],
  ['isInteger', 'isFinite'],
  ['setTimeout', 'setInterval'],
  ['charAt', 'charCodeAt'],
  ['set', 'add'],
  ['values', 'entries'],
  ['addListener', 'removeListener'],
  ['resume', 'pause'],
  ['match', 'search'],
  ['flat', 'flatMap'],
];
/** Where a method stands in several pairs, the first counts. */
const OTHER_METHOD = new Map<string, string>();
for (const [first, second] of METHOD_PAIRS) {
  if (!OTHER_METHOD.has(first)) OTHER_METHOD.set(first, second);
  if (!OTHER_METHOD.has(second)) OTHER_METHOD.set(second, first);
}

export function collectLocalSites(collector: SiteCollector): void {
  collector.visitBody((node) => {
    switch (node.kind) {
      case 'binary_expression':
        addBinary(collector, node);
        break;
      case 'augmented_assignment_expression':
      case 'update_expression':
        addOperator(collector, node);
        break;
      case 'ternary_expression':
        addTernary(collector, node);
        break;
      case 'if_statement':
      case 'while_statement':
      case 'do_statement':
        addCondition(collector, node);
        break;
      case 'number':
        addNumber(collector, node);
        break;
      case 'true':
      case 'false':
        collector.add('wrong-boolean', node, { right: node.kind, wrong: node.kind === 'true' ? 'false' : 'true' });
        break;
      case 'return_statement':
        addReturn(collector, node);
        break;
      case 'call_expression':
        addMethod(collector, node);
        break;
      default:
    }
  });
}

function addBinary(collector: SiteCollector, node: SyntaxNode): void {
  const { textOf } = collector;
  const [left, operator, right] = node.children.filter((child) => child.kind !== 'comment');
  if (left === undefined || operator === undefined || right === undefined) return;
  const written = textOf(node);
  const swapped = (mark: string): string =>
    `${textOf(right)}${collector.between(left, operator)}${mark}${collector.between(operator, right)}${textOf(left)}`;
  const replaced = (mark: string): string =>
    `${textOf(left)}${collector.between(left, operator)}${mark}${collector.between(operator, right)}${textOf(right)}`;
  const exchangeable = isPure(left) && isPure(right) && isTight(left) && isTight(right);
  const comparison = COMPARISONS[operator.kind];
  if (comparison !== undefined) {
    collector.add(comparisonKind(node, operator.kind), node, {
      right: written,
      wrong: replaced(comparison.wrong),
      ...(exchangeable ? { same: swapped(comparison.mirrored) } : {}),
    });
  }
  if (operator.kind === '&&' || operator.kind === '||') {
    const exchanged =
      exchangeable &&
      isConditionPart(node) &&
      !shareRoot(left, right, textOf) &&
      operator.kind !== (node.parent?.children[1]?.kind ?? '');
    collector.add('wrong-logic', node, {
      right: written,
      wrong: replaced(operator.kind === '&&' ? '||' : '&&'),
      ...(exchanged ? { same: swapped(operator.kind) } : {}),
    });
  }
  const arithmetic = ARITHMETIC[operator.kind];
  const hasText = [left, right].some(
    (side) => side.kind === 'string' || side.kind === 'template_string' || /['"`]/u.test(textOf(side)),
  );
  if (arithmetic !== undefined && !hasText) {
    const commutes =
      exchangeable &&
      (operator.kind === '*' || (operator.kind === '+' && (left.kind === 'number' || right.kind === 'number')));
    collector.add('wrong-arithmetic', node, {
      right: written,
      wrong: replaced(arithmetic),
      ...(commutes ? { same: swapped(operator.kind) } : {}),
    });
    if ((operator.kind === '+' || operator.kind === '-') && textOf(right) === '1')
      collector.add('off-by-one', node, { right: written, wrong: textOf(left) });
  }
  if (
    NON_COMMUTATIVE.has(operator.kind) &&
    !hasText &&
    isTight(left) &&
    isTight(right) &&
    textOf(left) !== textOf(right)
  ) {
    const mirrored = COMPARISONS[operator.kind]?.mirrored;
    collector.add('swapped-operands', node, {
      right: written,
      wrong: swapped(operator.kind),
      ...(mirrored !== undefined && exchangeable ? { same: swapped(mirrored) } : {}),
    });
  }
}

function comparisonKind(node: SyntaxNode, operator: string): BugCategory {
  if (isLoopBound(node)) return 'off-by-one';
  return EQUALITIES.has(operator) && isConditionPart(node) ? 'negated-condition' : 'wrong-comparison';
}

const LOOSE = new Set([
  'binary_expression',
  'ternary_expression',
  'assignment_expression',
  'augmented_assignment_expression',
  'arrow_function',
  'function_expression',
  'yield_expression',
  'await_expression',
  'sequence_expression',
  'object',
  'class',
  'as_expression',
  'satisfies_expression',
]);

/** The operand keeps its grouping on either side of any operator. */
function isTight(node: SyntaxNode): boolean {
  return !LOOSE.has(node.kind);
}

function isPure(node: SyntaxNode): boolean {
  return (
    PURE.has(node.kind) &&
    operands(node).every(
      (part) => isPure(part) || part.kind === 'property_identifier' || part.kind === 'private_property_identifier',
    )
  );
}

function shareRoot(left: SyntaxNode, right: SyntaxNode, textOf: (node: SyntaxNode) => string): boolean {
  const words = new Set(textOf(left).match(/[A-Za-z_$][\w$]*/gu) ?? []);
  return (textOf(right).match(/[A-Za-z_$][\w$]*/gu) ?? []).some((word) => word !== 'this' && words.has(word));
}

function isLoopBound(node: SyntaxNode): boolean {
  return node.parent?.kind === 'for_statement' || node.parent?.parent?.kind === 'for_statement'
    ? /^[<>]/u.test(node.children[1]?.kind ?? '')
    : false;
}

function addCondition(collector: SiteCollector, node: SyntaxNode): void {
  const { textOf } = collector;
  const inner = operands(childOfKind(node, 'parenthesized_expression') ?? node)[0];
  if (inner === undefined) return;
  const written = textOf(inner);
  if (inner.kind === 'unary_expression' && inner.children[0]?.kind === '!') {
    const argument = inner.children[1];
    if (argument !== undefined) collector.add('negated-condition', inner, { right: written, wrong: textOf(argument) });
  } else if (['identifier', 'member_expression', 'call_expression', 'subscript_expression'].includes(inner.kind)) {
    collector.add('negated-condition', inner, { right: written, wrong: `!${written}` });
  } else if (inner.kind === 'binary_expression') {
    const operator = inner.children[1]?.kind;
    if (operator === '&&' || operator === '||' || operator === 'instanceof' || operator === 'in')
      collector.add('negated-condition', inner, { right: written, wrong: `!(${written})` });
  }
}

function addOperator(collector: SiteCollector, node: SyntaxNode): void {
  const { textOf } = collector;
  const operator = node.children.find((child) => ARITHMETIC[child.kind] !== undefined);
  const wrong = operator === undefined ? undefined : ARITHMETIC[operator.kind];
  if (operator === undefined || wrong === undefined || /['"`]/u.test(textOf(node))) return;
  const written = textOf(node);
  const target = operands(node)[0];
  const isStatement = node.parent?.kind === 'expression_statement' || node.parent?.kind === 'for_statement';
  const plain = target === undefined ? '' : textOf(target);
  const sign = operator.kind.slice(0, 1);
  const longhand = operator.kind === `${sign}${sign}` ? `${plain} ${sign}= 1` : undefined;
  const at = operator.start - node.start;
  collector.add('wrong-arithmetic', node, {
    right: written,
    wrong: written.slice(0, at) + wrong + written.slice(at + operator.kind.length),
    ...(isStatement && longhand !== undefined ? { same: longhand } : {}),
  });
}

function addTernary(collector: SiteCollector, node: SyntaxNode): void {
  const { textOf } = collector;
  const [condition, , whenTrue, , whenFalse] = node.children.filter((child) => child.kind !== 'comment');
  if (condition === undefined || whenTrue === undefined || whenFalse === undefined) return;
  if (whenTrue.kind === 'ternary_expression' || whenFalse.kind === 'ternary_expression') return;
  const written = textOf(node);
  const test = textOf(condition);
  const yes = textOf(whenTrue);
  const no = textOf(whenFalse);
  let opposite: string | undefined;
  if (condition.kind === 'identifier' || condition.kind === 'member_expression' || condition.kind === 'call_expression')
    opposite = `!${test}`;
  else if (
    condition.kind === 'unary_expression' &&
    condition.children[0]?.kind === '!' &&
    condition.children[1] !== undefined
  )
    opposite = textOf(condition.children[1]);
  collector.add('swapped-operands', node, {
    right: written,
    wrong: `${test} ? ${no} : ${yes}`,
    ...(opposite === undefined ? {} : { same: `${opposite} ? ${no} : ${yes}` }),
  });
  if (opposite !== undefined) collector.add('negated-condition', condition, { right: test, wrong: opposite });
}

function addNumber(collector: SiteCollector, node: SyntaxNode): void {
  const written = collector.textOf(node);
  if (!/^\d{1,2}$/u.test(written)) return;
  const value = Number(written);
  const holder = node.parent;
  const isIndex =
    holder?.kind === 'subscript_expression' ||
    holder?.kind === 'variable_declarator' ||
    holder?.kind === 'assignment_expression';
  const isArgument =
    holder?.kind === 'arguments' &&
    /\.(slice|substring|substr|splice|charAt|charCodeAt|indexOf|at|fill|copy|subarray|read\w+|write\w+)$/u.test(
      collector.textOf(holder.parent?.children[0] ?? holder),
    );
  const operator = holder?.kind === 'binary_expression' ? (holder.children[1]?.kind ?? '') : '';
  const isCompared = /^([<>]=?|[=!]==?)$/u.test(operator);
  if (!isIndex && !isArgument && !isCompared) return;
  const wrong = String(value === 0 || (node.start % 2 === 0 && value < 99) ? value + 1 : value - 1);
  collector.add('off-by-one', node, { right: written, wrong });
  // For lengths, "above 0" and "at least 1" are one test.
  if (
    holder !== undefined &&
    operator === '>' &&
    /\.(length|size)$/u.test(collector.textOf(holder.children[0] ?? holder))
  ) {
    const left = collector.textOf(holder.children[0] ?? holder);
    collector.add('off-by-one', holder, {
      right: collector.textOf(holder),
      same: `${left} >= ${value + 1}`,
      wrong: `${left} >= ${value}`,
    });
  }
}

function addReturn(collector: SiteCollector, node: SyntaxNode): void {
  const [keyword] = node.children;
  const value = operands(node)[0];
  if (keyword === undefined || value === undefined) return;
  if (
    ![
      'call_expression',
      'await_expression',
      'assignment_expression',
      'new_expression',
      'identifier',
      'member_expression',
      'binary_expression',
      'ternary_expression',
    ].includes(value.kind)
  )
    return;
  const written = collector.textOf(node);
  collector.add('missing-return', node, { right: written, wrong: written.slice(value.start - node.start) });
}

function addMethod(collector: SiteCollector, node: SyntaxNode): void {
  const callee = node.children[0];
  if (callee?.kind !== 'member_expression') return;
  const method = callee.children.at(-1);
  const written = method === undefined ? '' : collector.textOf(method);
  const other = OTHER_METHOD.get(written);
  if (method !== undefined && other !== undefined) {
    // As a statement, `map` only visits, as `forEach` does.
    const onlyVisits = (written === 'map' || written === 'forEach') && node.parent?.kind === 'expression_statement';
    collector.add(
      'wrong-method',
      method,
      onlyVisits ? { right: written, same: other } : { right: written, wrong: other },
    );
  }
  // `list.indexOf(x) !== -1` and `list.includes(x)` ask the same of a list or a text.
  const test = node.parent;
  if (
    written === 'indexOf' &&
    test?.kind === 'binary_expression' &&
    /^(!==?|>) -1$/u.test(`${test.children[1]?.kind} ${collector.textOf(test.children[2] ?? test)}`)
  ) {
    const argument = collector.textOf(node).slice((method?.end ?? 0) - node.start);
    const owner = collector.textOf(callee.children[0] ?? callee);
    collector.add('wrong-method', test, {
      right: collector.textOf(test),
      same: `${owner}.includes${argument}`,
      wrong: `${owner}.startsWith${argument}`,
    });
  }
}
