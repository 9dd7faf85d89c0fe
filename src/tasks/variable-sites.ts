/**
 * Sites of the kind wrong-variable: a local name read where another that is in scope could stand.
 * Invariant: the other name is declared before the place, in a scope that holds it, and not by the statement itself.
 */
import { closest, FUNCTION_KINDS, type SyntaxNode } from '../code/syntax-tree.ts';
import type { SiteCollector } from './site-collector.ts';

export function collectVariableSites(collector: SiteCollector): void {
  const declared = localNames(collector);
  collector.visitBody((node) => {
    if (node.kind === 'identifier') addVariable(collector, node, declared);
  });
}

interface LocalName {
  readonly name: string;
  readonly scope: SyntaxNode;
  readonly start: number;
}

const BLOCKS = new Set([
  'statement_block',
  'for_statement',
  'for_in_statement',
  'switch_body',
  'catch_clause',
  'class_body',
  ...FUNCTION_KINDS,
]);

function localNames(collector: SiteCollector): LocalName[] {
  const found: LocalName[] = [];
  collector.visitBody((node) => {
    if (node.kind !== 'identifier' && node.kind !== 'shorthand_property_identifier_pattern') return;
    const holder = node.parent;
    if (holder === undefined) return;
    const isParameter =
      holder.kind === 'formal_parameters' ||
      holder.kind === 'required_parameter' ||
      (holder.kind === 'assignment_pattern' && holder.children[0] === node);
    const isDeclared =
      (holder.kind === 'variable_declarator' && holder.children[0] === node) ||
      node.kind === 'shorthand_property_identifier_pattern' ||
      (holder.kind === 'for_in_statement' && holder.children.indexOf(node) === 3);
    if (!isParameter && !isDeclared) return;
    const scope = closest(node, isParameter ? FUNCTION_KINDS : BLOCKS);
    if (scope !== undefined) found.push({ name: collector.textOf(node), scope, start: node.start });
  });
  return found;
}

/** Another variable that is in scope at the same place; never where a name is declared or assigned. */
function addVariable(collector: SiteCollector, node: SyntaxNode, declared: readonly LocalName[]): void {
  const holder = node.parent;
  if (holder === undefined) return;
  const isValue =
    holder.kind === 'arguments' ||
    holder.kind === 'binary_expression' ||
    holder.kind === 'return_statement' ||
    holder.kind === 'subscript_expression' ||
    holder.kind === 'parenthesized_expression' ||
    holder.kind === 'template_substitution' ||
    (holder.kind === 'member_expression' && holder.children[0] === node) ||
    (holder.kind === 'assignment_expression' && holder.children.at(-1) === node) ||
    (holder.kind === 'variable_declarator' && holder.children.length > 2 && holder.children.at(-1) === node) ||
    (holder.kind === 'pair' && holder.children.at(-1) === node);
  if (!isValue) return;
  const name = collector.textOf(node);
  if (!declared.some((local) => local.name === name)) return;
  const others = new Set<string>();
  for (const local of declared)
    if (local.name !== name && local.start < node.start && isInside(node, local.scope) && !isInitializer(node, local))
      others.add(local.name);
  const candidates = [...others];
  const wrong = candidates[node.start % Math.max(1, candidates.length)];
  if (wrong !== undefined) collector.add('wrong-variable', node, { right: name, wrong });
}

function isInside(node: SyntaxNode, scope: SyntaxNode): boolean {
  return node.start >= scope.start && node.end <= scope.end;
}

/** `const a = f(b)`: inside its own initializer a name is not yet readable. */
function isInitializer(node: SyntaxNode, local: LocalName): boolean {
  const declarator = closest(node, new Set(['variable_declarator']));
  return declarator !== undefined && declarator.start <= local.start && local.start < declarator.end;
}
