/**
 * Sites of the kind missing-guard: a check or a fallback that protects what stands beside it, and checks that protect
 * nothing, which may come and go.
 */
import type { SyntaxNode } from '../code/syntax-tree.ts';
import { isConditionPart } from './conditions.ts';
import type { SiteCollector } from './site-collector.ts';

export function collectGuardSites(collector: SiteCollector): void {
  collector.visitBody((node) => {
    if (node.kind === 'optional_chain') addOptionalChain(collector, node);
    if (node.kind !== 'binary_expression') return;
    const [left, operator, right] = node.children.filter((child) => child.kind !== 'comment');
    if (left === undefined || operator === undefined || right === undefined) return;
    if (operator.kind === '&&' || operator.kind === '||') addGuard(collector, node, { left, operator, right });
    if (operator.kind === '===') addRedundantGuard(collector, node);
  });
}

function addOptionalChain(collector: SiteCollector, node: SyntaxNode): void {
  const next = node.parent?.children[node.parent.children.indexOf(node) + 1];
  if (next?.kind === 'property_identifier') collector.add('missing-guard', node, { right: '?.', wrong: '.' });
}

interface Logical {
  readonly left: SyntaxNode;
  readonly operator: SyntaxNode;
  readonly right: SyntaxNode;
}

/** `list && list.length`: what is left of `&&` guards what is right of it. `options || {}`: the fallback is the guard. */
function addGuard(collector: SiteCollector, node: SyntaxNode, { left, operator, right }: Logical): void {
  const { textOf } = collector;
  const written = textOf(node);
  if (operator.kind === '||') {
    const fallback = textOf(right);
    if (fallback === '{}' || fallback === '[]' || fallback === "''" || fallback === '0')
      collector.add('missing-guard', node, { right: written, wrong: textOf(left) });
    return;
  }
  if (left.kind !== 'identifier' && left.kind !== 'member_expression') return;
  const guarded = textOf(left);
  const use = textOf(right);
  if (use.startsWith(`${guarded}.`) || use.startsWith(`${guarded}[`))
    collector.add('missing-guard', node, { right: written, wrong: use });
  else if (isConditionPart(node) && checksItself(use, guarded))
    collector.add('missing-guard', node, { right: written, same: use });
}

/** A test that is false for null and undefined anyway, so that a guard before it adds nothing. */
function checksItself(use: string, guarded: string): boolean {
  const tests = [
    `Array.isArray(${guarded})`,
    `typeof ${guarded} === 'string'`,
    `typeof ${guarded} === 'function'`,
    `typeof ${guarded} === "string"`,
    `typeof ${guarded} === "function"`,
  ];
  return tests.includes(use) || (use.startsWith(`${guarded} instanceof `) && !/[&|?]/u.test(use));
}

function addRedundantGuard(collector: SiteCollector, node: SyntaxNode): void {
  if (!isConditionPart(node) && node.parent?.parent?.kind !== 'if_statement') return;
  const written = collector.textOf(node);
  const subject = /^typeof ([\w$.]+) === ['"](?:string|function)['"]$/u.exec(written)?.[1];
  if (subject === undefined || node.parent?.children[0] !== node) {
    if (subject === undefined || node.parent?.kind !== 'parenthesized_expression') return;
  }
  collector.add('missing-guard', node, { right: written, same: `${subject} && ${written}` });
}
