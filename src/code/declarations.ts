/**
 * What a source file declares: functions, classes, methods, properties, module constants, documented defaults, and
 * what it imports. Read from the syntax tree; documentation comes from the comment that touches the declaration.
 * Invariant: every declaration names a line of its own file (1-based).
 */
import type { SourceFile } from './source-files.ts';
import { CLASS_KINDS, childOfKind, FUNCTION_KINDS, hasChild, LineMap, operands, visit, type SyntaxNode } from './syntax-tree.ts';

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

export interface ImportedName {
  /** Name in this file. */
  readonly local: string;
  /** Name in the other file; `*` = the whole module. */
  readonly imported: string;
  /** As written: `./client.js` or `node:fs`. */
  readonly from: string;
}

export interface FileDeclarations {
  readonly declarations: readonly Declaration[];
  readonly imports: readonly ImportedName[];
}

const LITERAL_KINDS = new Set(['number', 'string', 'true', 'false']);
const MAX_VALUE_CHARACTERS = 24;
const MAX_DOC_CHARACTERS = 80;
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
      add(at, documentedDefault.name, { kind: 'property', isAsync: false, parameters: [], value: documentedDefault.value, container: name });
    }
    for (const parameter of defaultParameters(node, textOf)) {
      add(parameter.node, parameter.name, { kind: 'property', isAsync: false, parameters: [], value: parameter.value, container: name });
    }
  };
  const addProperty = (at: SyntaxNode, name: string, value: SyntaxNode | undefined, kind: 'property' | 'constant' = 'property'): void => {
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
        const constructorNode = body.children.find((member) => member.kind === 'method_definition' && propertyName(member, textOf) === 'constructor');
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
            add(constructorNode, stated.name, { kind: 'property', isAsync: false, parameters: [], value: stated.value, container: holder });
          for (const parameter of defaultParameters(constructorNode, textOf))
            add(parameter.node, parameter.name, { kind: 'property', isAsync: false, parameters: [], value: parameter.value, container: holder });
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
        else addProperty(node, name, isModuleLevel(node) && node.parent?.parent?.kind !== 'arguments' ? value : undefined);
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
          else add(node, textOf(name), { kind: 'constant', isAsync: false, parameters: [], ...documented(commentBefore(node, textOf)) });
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
    if (child.kind === 'property_identifier' || child.kind === 'private_property_identifier') return textOf(child).replace(/^#/u, '');
    if (child.kind === 'string') return /^.[\w$]+.$/u.test(textOf(child)) ? textOf(child).slice(1, -1) : undefined;
    if (child.kind === 'formal_parameters' || child.kind === ':' || child.kind === '=') return undefined;
  }
  return undefined;
}

export function valueAfter(node: SyntaxNode, mark: string): SyntaxNode | undefined {
  const at = node.children.findIndex((child) => child.kind === mark);
  return at === -1 ? undefined : node.children.slice(at + 1).find((child) => child.kind !== 'comment');
}

export function literalText(node: SyntaxNode, textOf: (node: SyntaxNode) => string): string | undefined {
  const negative = node.kind === 'unary_expression' && node.children[0]?.kind === '-' && node.children[1]?.kind === 'number';
  if (!LITERAL_KINDS.has(node.kind) && !negative) return undefined;
  const text = textOf(node);
  return text.length <= MAX_VALUE_CHARACTERS && !text.includes('\n') ? text : undefined;
}

export function parameterList(node: SyntaxNode): readonly SyntaxNode[] {
  const list = childOfKind(node, 'formal_parameters');
  if (list !== undefined) return operands(list).filter((child) => child.kind !== 'decorator');
  const bare = node.kind === 'arrow_function' ? childOfKind(node, 'identifier') : undefined;
  return bare === undefined ? [] : [bare];
}

function parameterNames(node: SyntaxNode, textOf: (node: SyntaxNode) => string): string[] {
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

function defaultParameters(node: SyntaxNode, textOf: (node: SyntaxNode) => string): { node: SyntaxNode; name: string; value: string }[] {
  const found: { node: SyntaxNode; name: string; value: string }[] = [];
  const read = (parameter: SyntaxNode): void => {
    if (parameter.kind === 'object_pattern') {
      for (const child of parameter.children) read(child);
      return;
    }
    const name = parameter.children.find((child) => /identifier/u.test(child.kind) && child.kind !== 'type_identifier');
    const value = valueAfter(parameter, '=');
    const literal = value === undefined ? undefined : literalText(value, textOf);
    if (name !== undefined && literal !== undefined) found.push({ node: parameter, name: textOf(name), value: literal });
    for (const child of parameter.children) if (child.kind === 'object_pattern') read(child);
  };
  for (const parameter of parameterList(node)) read(parameter);
  return found;
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
  for (let at = node.parent; at !== undefined; at = at.parent) if (FUNCTION_KINDS.has(at.kind) || CLASS_KINDS.has(at.kind)) return false;
  return true;
}

function commentBefore(node: SyntaxNode, textOf: (node: SyntaxNode) => string): string | undefined {
  let at: SyntaxNode | undefined = node;
  // A declaration's comment stands before its statement: `export`, `const`, an assignment.
  while (at?.parent !== undefined && at.parent.children.find((child) => child.kind !== 'comment') === at && at.parent.parent !== undefined) at = at.parent;
  if (at?.parent?.kind === 'export_statement' || at?.parent?.kind === 'lexical_declaration' || at?.parent?.kind === 'variable_declaration') at = at.parent;
  if (at?.parent?.kind === 'export_statement') at = at.parent;
  const siblings = at?.parent?.children ?? [];
  const position = at === undefined ? -1 : siblings.indexOf(at);
  const previous = siblings[position - 1];
  const candidate = previous?.kind === ',' || previous?.kind === ';' ? siblings[position - 2] : previous;
  return candidate?.kind === 'comment' ? textOf(candidate) : undefined;
}

function documented(comment: string | undefined): { doc?: string } {
  if (comment === undefined) return {};
  const line = comment
    .split('\n')
    .map((text) => text.replace(/^[\s/*]+|[\s*/]+$/gu, ''))
    .find((text) => text !== '' && !text.startsWith('@') && !/eslint|istanbul|ts-/u.test(text));
  return line === undefined ? {} : { doc: line.slice(0, MAX_DOC_CHARACTERS) };
}

const STATED_DEFAULT = /(?:@default(?:[Vv]alue)?\s+|\b[Dd]efaults? (?:to|is|value is)\s*:?\s*|\b[Dd]efault(?: value)?\s*[:=]\s*)`?(-?\d[\w.]*|true|false|null|'[^'\n]{1,20}'|"[^"\n]{1,20}")/u;

function statedDefault(comment: string | undefined): string | undefined {
  return comment === undefined ? undefined : STATED_DEFAULT.exec(comment)?.[1]?.replace(/\.$/u, '');
}

/** `@param {number} [options.timeout=5000]`, or a default stated in the parameter's text. */
function parameterDefaults(comment: string | undefined): { name: string; value: string }[] {
  if (comment === undefined || !comment.startsWith('/**')) return [];
  const found: { name: string; value: string }[] = [];
  for (const match of comment.matchAll(/@(?:param|property|prop)\s+(?:\{[^}\n]*\}\s*)?\[?(?:[\w$]+\.)*([\w$]+)(?:\s*=\s*([^\]\n]{1,24}?)\s*\])?([^@]*)/gu)) {
    const [, name, bracketed, rest] = match;
    const value = bracketed ?? statedDefault(rest);
    if (name !== undefined && value !== undefined && /^(-?\d[\w.]*|true|false|null|'[^']*'|"[^"]*")$/u.test(value)) found.push({ name, value });
  }
  return found;
}

function declaresPromise(node: SyntaxNode, comment: string | undefined, textOf: (node: SyntaxNode) => string): 'yes' | 'no' | 'maybe' {
  if (hasChild(node, 'async')) return hasChild(node, '*') ? 'maybe' : 'yes';
  if (node.kind.startsWith('generator') || hasChild(node, '*')) return 'maybe';
  const returnType = childOfKind(node, 'type_annotation');
  if (returnType !== undefined) {
    const written = textOf(returnType).replace(/^:\s*/u, '');
    if (/^Promise\b/u.test(written)) return 'yes';
    return /^(void|string|number|boolean|\w+\[\]|Buffer|Uint8Array|undefined|null)(\s*\|\s*(string|number|boolean|undefined|null))*$/u.test(written) ? 'no' : 'maybe';
  }
  if (comment !== undefined && /@returns?\s*\{\s*Promise\b/u.test(comment)) return 'yes';
  const body = childOfKind(node, 'statement_block');
  if (body === undefined) return node.kind === 'arrow_function' && isPlainValue(operands(node).at(-1), textOf) ? 'no' : 'maybe';
  let result: 'yes' | 'no' | 'maybe' = 'no';
  visit(body, (inner) => {
    if (FUNCTION_KINDS.has(inner.kind)) return false;
    if (inner.kind !== 'return_statement') return true;
    const value = operands(inner)[0];
    if (value === undefined || isPlainValue(value, textOf)) return true;
    if (value.kind === 'new_expression' && /^new Promise\b/u.test(textOf(value))) result = 'yes';
    else if (result === 'no') result = 'maybe';
    return true;
  });
  return result;
}

const PLAIN_KINDS = new Set(['number', 'string', 'template_string', 'true', 'false', 'null', 'undefined', 'unary_expression', 'update_expression', 'object', 'array', 'this', 'regex', 'function_expression', 'arrow_function']);
const PLAIN_CALL = /(^|\.)(slice|substring|substr|join|map|filter|split|trim|replace|indexOf|includes|toString|toLowerCase|toUpperCase|concat|keys|values|entries|isArray|some|every|hasOwnProperty|test|startsWith|endsWith|String|Number|Boolean|stringify|floor|ceil|round|max|min|charCodeAt|repeat|padStart|has)$/u;

/** A value that is certainly no promise. */
function isPlainValue(node: SyntaxNode | undefined, textOf: (node: SyntaxNode) => string): boolean {
  if (node === undefined) return false;
  if (PLAIN_KINDS.has(node.kind)) return true;
  const parts = operands(node);
  if (node.kind === 'binary_expression') return !/^(&&|\|\||\?\?)$/u.test(node.children[1]?.kind ?? '') || parts.every((part) => isPlainValue(part, textOf));
  if (node.kind === 'parenthesized_expression') return parts.every((part) => isPlainValue(part, textOf));
  if (node.kind === 'ternary_expression') return parts.slice(1).every((part) => isPlainValue(part, textOf));
  if (node.kind === 'new_expression') return !/^new Promise\b/u.test(textOf(node));
  if (node.kind === 'call_expression') return PLAIN_CALL.test(textOf(node.children[0] ?? node));
  return false;
}

function readImport(node: SyntaxNode, imports: ImportedName[], textOf: (node: SyntaxNode) => string): void {
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
function readRequire(target: SyntaxNode, value: SyntaxNode, imports: ImportedName[], textOf: (node: SyntaxNode) => string): void {
  const match = /^require\((['"])([^'"]+)\1\)(?:\.([\w$]+))?$/u.exec(value.end - value.start < 200 ? textOf(value) : '');
  const from = match?.[2];
  if (from === undefined) return;
  if (target.kind === 'identifier') imports.push({ local: textOf(target), imported: match?.[3] ?? '*', from });
  if (target.kind !== 'object_pattern') return;
  for (const part of target.children) {
    if (part.kind === 'shorthand_property_identifier_pattern') imports.push({ local: textOf(part), imported: textOf(part), from });
    if (part.kind === 'pair_pattern') {
      const imported = childOfKind(part, 'property_identifier');
      const local = childOfKind(part, 'identifier');
      if (imported !== undefined && local !== undefined) imports.push({ local: textOf(local), imported: textOf(imported), from });
    }
  }
}
