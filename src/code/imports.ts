/**
 * What a file takes from other files: `import` and `require`, as local name, name in the other file, and specifier.
 */
import { childOfKind, type SyntaxNode } from './syntax-tree.ts';

export interface ImportedName {
  /** Name in this file. */
  readonly local: string;
  /** Name in the other file; `*` = the whole module. */
  readonly imported: string;
  /** As written: `./client.js` or `node:fs`. */
  readonly from: string;
}

export function readImport(node: SyntaxNode, imports: ImportedName[], textOf: (node: SyntaxNode) => string): void {
  const source = childOfKind(node, 'string');
  const clause = childOfKind(node, 'import_clause');
  if (source === undefined || clause === undefined) return;
  const from = textOf(source).slice(1, -1);
  for (const part of clause.children) {
    if (part.kind === 'identifier') imports.push({ local: textOf(part), imported: 'default', from });
    if (part.kind === 'namespace_import') {
      const name = childOfKind(part, 'identifier');
      if (name !== undefined) imports.push({ local: textOf(name), imported: '*', from });
    }
    if (part.kind === 'named_imports') {
      for (const specifier of part.children.filter((child) => child.kind === 'import_specifier')) {
        const names = specifier.children.filter((child) => child.kind === 'identifier').map(textOf);
        const [imported] = names;
        if (imported !== undefined) imports.push({ local: names.at(-1) ?? imported, imported, from });
      }
    }
  }
}

/** `const x = require('./x')`, `const { a, b: c } = require('./x')`, `const a = require('./x').a`. */
export function readRequire(
  target: SyntaxNode,
  value: SyntaxNode,
  imports: ImportedName[],
  textOf: (node: SyntaxNode) => string,
): void {
  const match = /^require\((['"])([^'"]+)\1\)(?:\.([\w$]+))?$/u.exec(
    value.end - value.start < 200 ? textOf(value) : '',
  );
  const from = match?.[2];
  if (from === undefined) return;
  if (target.kind === 'identifier') imports.push({ local: textOf(target), imported: match?.[3] ?? '*', from });
  if (target.kind !== 'object_pattern') return;
  for (const part of target.children) {
    if (part.kind === 'shorthand_property_identifier_pattern')
      imports.push({ local: textOf(part), imported: textOf(part), from });
    if (part.kind === 'pair_pattern') {
      const imported = childOfKind(part, 'property_identifier');
      const local = childOfKind(part, 'identifier');
      if (imported !== undefined && local !== undefined)
        imports.push({ local: textOf(local), imported: textOf(imported), from });
    }
  }
}
