/**
 * The parameters of a function: their names as a reader sees them, and the literals that they default to.
 */
import { literalText, valueAfter } from './literals.ts';
import { childOfKind, operands, type SyntaxNode } from './syntax-tree.ts';

function parameterList(node: SyntaxNode): readonly SyntaxNode[] {
  const list = childOfKind(node, 'formal_parameters');
  if (list !== undefined) return operands(list).filter((child) => child.kind !== 'decorator');
  const bare = node.kind === 'arrow_function' ? childOfKind(node, 'identifier') : undefined;
  return bare === undefined ? [] : [bare];
}

export function parameterNames(node: SyntaxNode, textOf: (node: SyntaxNode) => string): string[] {
  return parameterList(node)
    .map((parameter) => {
      if (parameter.kind === 'identifier') return textOf(parameter);
      const name = childOfKind(parameter, 'identifier', 'rest_pattern', 'object_pattern', 'array_pattern');
      if (name === undefined || name.kind === 'object_pattern' || parameter.kind === 'object_pattern') return '{}';
      if (name.kind === 'array_pattern' || parameter.kind === 'array_pattern') return '[]';
      return parameter.kind === 'rest_pattern' ? `...${textOf(name)}` : textOf(name);
    })
    .filter((name) => name !== 'this');
}

export function defaultParameters(
  node: SyntaxNode,
  textOf: (node: SyntaxNode) => string,
): { node: SyntaxNode; name: string; value: string }[] {
  const found: { node: SyntaxNode; name: string; value: string }[] = [];
  const read = (parameter: SyntaxNode): void => {
    if (parameter.kind === 'object_pattern') {
      for (const child of parameter.children) read(child);
      return;
    }
    const name = parameter.children.find((child) => /identifier/u.test(child.kind) && child.kind !== 'type_identifier');
    const value = valueAfter(parameter, '=');
    const literal = value === undefined ? undefined : literalText(value, textOf);
    if (name !== undefined && literal !== undefined)
      found.push({ node: parameter, name: textOf(name), value: literal });
    for (const child of parameter.children) if (child.kind === 'object_pattern') read(child);
  };
  for (const parameter of parameterList(node)) read(parameter);
  return found;
}
