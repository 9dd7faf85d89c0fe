/**
 * What a source file declares: functions, classes, methods, properties, module constants, documented defaults, and
 * what it imports. Read from the syntax tree; documentation comes from the comment that touches the declaration.
 * Invariant: every declaration names a line of its own file (1-based).
 */
import { commentBefore, documented, parameterDefaults, statedDefault } from './documentation.ts';
import { type ImportedName, readImport, readRequire } from './imports.ts';
import { literalText, valueAfter } from './literals.ts';
import { defaultParameters, parameterNames } from './parameters.ts';
import { declaresPromise } from './promised-results.ts';
import type { SourceFile } from './source-files.ts';
import { CLASS_KINDS, childOfKind, FUNCTION_KINDS, hasChild, LineMap, visit, type SyntaxNode } from './syntax-tree.ts';

export interface Declaration {
  readonly name: string;
  readonly file: string;
  readonly line: number;
  readonly kind: 'function' | 'method' | 'class' | 'constant' | 'property';
  /** Declared `async`, or declared to return a promise. */
  readonly isAsync: boolean;
  readonly parameters: readonly string[];
  readonly members?: readonly string[];
  /** Source text of a literal initial value, or the documented default. */
  readonly value?: string;
  /** One line of documentation. */
  readonly doc?: string;
  /** Class, object or function that the name belongs to. */
  readonly container?: string;
  /** Last line of a class or function. */
  readonly endLine?: number;
  /** Not declared async, but a call may still give a promise: nothing is known of what it returns. */
  readonly mayReturnPromise?: boolean;
}

export interface FileDeclarations {
  readonly declarations: readonly Declaration[];
  readonly imports: readonly ImportedName[];
}

const TYPE_CONTAINERS = new Set(['interface_declaration', 'type_alias_declaration', 'enum_declaration']);

export function readDeclarations(file: SourceFile, root: SyntaxNode): FileDeclarations {
  const declarations: Declaration[] = [];
  const imports: ImportedName[] = [];
  const { text, path } = file;
  const lines = new LineMap(text);
  const textOf = (node: SyntaxNode): string => text.slice(node.start, node.end);
  const add = (node: SyntaxNode, name: string, rest: Omit<Declaration, 'name' | 'file' | 'line'>): void => {
    declarations.push({ name: name.replace(/^#/u, ''), file: path, line: lines.lineAt(node.start), ...rest });
  };

  const addFunction = (at: SyntaxNode, name: string, node: SyntaxNode, kind: 'function' | 'method'): void => {
    const container = containerOf(at, textOf);
    const comment = commentBefore(at, textOf);
    const promise = declaresPromise(node, comment, textOf);
    add(at, name, {
      kind,
      isAsync: promise === 'yes',
      parameters: parameterNames(node, textOf),
      endLine: lines.lineAt(node.end),
      ...(promise === 'maybe' ? { mayReturnPromise: true } : {}),
      ...documented(comment),
      ...(container === undefined ? {} : { container }),
    });
    for (const documentedDefault of parameterDefaults(comment)) {
      add(at, documentedDefault.name, {
        kind: 'property',
        isAsync: false,
        parameters: [],
        value: documentedDefault.value,
        container: name,
      });
    }
    for (const parameter of defaultParameters(node, textOf)) {
      add(parameter.node, parameter.name, {
        kind: 'property',
        isAsync: false,
        parameters: [],
        value: parameter.value,
        container: name,
      });
    }
  };
  const addProperty = (
    at: SyntaxNode,
    name: string,
    value: SyntaxNode | undefined,
    kind: 'property' | 'constant' = 'property',
  ): void => {
    const container = containerOf(at, textOf);
    const comment = commentBefore(at, textOf);
    const literal = value === undefined ? undefined : literalText(value, textOf);
    const stated = literal ?? statedDefault(comment);
    add(at, name, {
      kind,
      isAsync: false,
      parameters: [],
      ...(stated === undefined ? {} : { value: stated }),
      ...documented(comment),
      ...(container === undefined ? {} : { container }),
    });
  };

  visit(root, (node) => {
    switch (node.kind) {
      case 'function_declaration':
      case 'generator_function_declaration':
      case 'function_signature': {
        const name = childOfKind(node, 'identifier');
        if (name !== undefined) addFunction(node, textOf(name), node, 'function');
        return;
      }
      case 'method_definition':
      case 'method_signature':
      case 'abstract_method_signature': {
        const name = propertyName(node, textOf);
        if (name === undefined || name === 'constructor') return;
        if (hasChild(node, 'get') || hasChild(node, 'set')) addProperty(node, name, undefined);
        else addFunction(node, name, node, 'method');
        return;
      }
      case 'class_declaration':
      case 'abstract_class_declaration':
      case 'class': {
        const name = childOfKind(node, 'identifier', 'type_identifier');
        const body = childOfKind(node, 'class_body');
        if (name === undefined || body === undefined) return;
        const constructorNode = body.children.find(
          (member) => member.kind === 'method_definition' && propertyName(member, textOf) === 'constructor',
        );
        add(node, textOf(name), {
          kind: 'class',
          isAsync: false,
          parameters: constructorNode === undefined ? [] : parameterNames(constructorNode, textOf),
          members: body.children.map((member) => propertyName(member, textOf)).filter((member) => member !== undefined),
          endLine: lines.lineAt(node.end),
          ...documented(commentBefore(node, textOf)),
        });
        if (constructorNode !== undefined) {
          const holder = textOf(name);
          for (const stated of parameterDefaults(commentBefore(constructorNode, textOf)))
            add(constructorNode, stated.name, {
              kind: 'property',
              isAsync: false,
              parameters: [],
              value: stated.value,
              container: holder,
            });
          for (const parameter of defaultParameters(constructorNode, textOf))
            add(parameter.node, parameter.name, {
              kind: 'property',
              isAsync: false,
              parameters: [],
              value: parameter.value,
              container: holder,
            });
        }
        return;
      }
      case 'field_definition':
      case 'public_field_definition': {
        const name = propertyName(node, textOf);
        const value = valueAfter(node, '=');
        if (name === undefined) return;
        if (value !== undefined && FUNCTION_KINDS.has(value.kind)) addFunction(node, name, value, 'method');
        else addProperty(node, name, value);
        return;
      }
      case 'property_signature':
      case 'enum_assignment': {
        const name = propertyName(node, textOf);
        if (name !== undefined) addProperty(node, name, valueAfter(node, '='));
        return;
      }
      case 'pair': {
        const name = propertyName(node, textOf);
        const value = valueAfter(node, ':');
        if (name === undefined || value === undefined) return;
        if (FUNCTION_KINDS.has(value.kind)) addFunction(node, name, value, 'method');
        else
          addProperty(node, name, isModuleLevel(node) && node.parent?.parent?.kind !== 'arguments' ? value : undefined);
        return;
      }
      case 'shorthand_property_identifier':
        addProperty(node, textOf(node), undefined);
        return;
      case 'variable_declarator': {
        const [name] = node.children;
        const value = valueAfter(node, '=');
        if (name === undefined) return;
        if (value !== undefined) readRequire(name, value, imports, textOf);
        if (name.kind !== 'identifier') return;
        if (value !== undefined && FUNCTION_KINDS.has(value.kind)) addFunction(node, textOf(name), value, 'function');
        else if (value !== undefined && isModuleLevel(node)) {
          // What may be assigned again has no value that its uses must agree with.
          const isFixed = node.parent?.children[0]?.kind === 'const' || /^[A-Z][A-Z\d_]+$/u.test(textOf(name));
          if (isFixed) addProperty(node, textOf(name), value, 'constant');
          else
            add(node, textOf(name), {
              kind: 'constant',
              isAsync: false,
              parameters: [],
              ...documented(commentBefore(node, textOf)),
            });
        }
        return;
      }
      case 'assignment_expression': {
        const [target, , value] = node.children;
        if (target?.kind !== 'member_expression' || value === undefined) return;
        const property = target.children.at(-1);
        if (property === undefined || !/property_identifier$/u.test(property.kind)) return;
        if (FUNCTION_KINDS.has(value.kind)) addFunction(node, textOf(property), value, 'method');
        else addProperty(node, textOf(property), isModuleLevel(node) ? value : undefined);
        return;
      }
      case 'import_statement':
        readImport(node, imports, textOf);
        return;
      default:
    }
  });
  return { declarations, imports };
}

/** The identifier or property that a member, pair or field declares. */
function propertyName(node: SyntaxNode, textOf: (node: SyntaxNode) => string): string | undefined {
  for (const child of node.children) {
    if (child.kind === 'property_identifier' || child.kind === 'private_property_identifier')
      return textOf(child).replace(/^#/u, '');
    if (child.kind === 'string') return /^.[\w$]+.$/u.test(textOf(child)) ? textOf(child).slice(1, -1) : undefined;
    if (child.kind === 'formal_parameters' || child.kind === ':' || child.kind === '=') return undefined;
  }
  return undefined;
}

function containerOf(node: SyntaxNode, textOf: (node: SyntaxNode) => string): string | undefined {
  if (node.kind === 'assignment_expression') {
    const path = textOf(node.children[0] ?? node).split('.');
    const owner = path.at(-2) === 'prototype' ? path.at(-3) : path.at(-2);
    if (owner !== undefined && owner !== 'this' && owner !== 'exports') return owner;
  }
  for (let at = node.parent; at !== undefined; at = at.parent) {
    if (CLASS_KINDS.has(at.kind) || TYPE_CONTAINERS.has(at.kind)) {
      const name = childOfKind(at, 'identifier', 'type_identifier');
      return name === undefined ? undefined : textOf(name);
    }
    if (at.kind === 'variable_declarator' && at.children[0]?.kind === 'identifier') return textOf(at.children[0]);
    if (at.kind === 'pair') return propertyName(at, textOf);
    if (at.kind === 'assignment_expression') {
      const path = textOf(at.children[0] ?? at).split('.');
      return path.at(-1) === 'prototype' ? path.at(-2) : path.at(-1);
    }
    if (FUNCTION_KINDS.has(at.kind) && at.kind !== 'method_definition' && at.kind !== 'arrow_function') {
      const name = childOfKind(at, 'identifier');
      if (name !== undefined) return textOf(name);
    }
  }
  return undefined;
}

export function isModuleLevel(node: SyntaxNode): boolean {
  for (let at = node.parent; at !== undefined; at = at.parent)
    if (FUNCTION_KINDS.has(at.kind) || CLASS_KINDS.has(at.kind)) return false;
  return true;
}
