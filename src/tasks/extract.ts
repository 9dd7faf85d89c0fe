/**
 * One installed package taken apart: its index, and its functions with every site that they offer.
 * Invariant: the same package gives the same functions and sites on every machine.
 */
import { type FileDeclarations, isModuleLevel, readDeclarations } from '../code/declarations.ts';
import { cloneSignature, findFunctions } from '../code/functions.ts';
import type { InstalledPackage } from '../code/installed-packages.ts';
import { collectIndexData, createPackageIndex, storeIndex } from '../code/package-index.ts';
import { readSourceFiles } from '../code/source-files.ts';
import { LineMap, parseSource, type SyntaxNode, visit } from '../code/syntax-tree.ts';
import { createRandom, deriveSeed } from '../domain/ids.ts';
import { collectBenignSites } from './benign-sites.ts';
import { collectElsewhereSites } from './elsewhere-sites.ts';
import { collectGuardSites } from './guard-sites.ts';
import { InventedNames } from './invented-names.ts';
import { collectLocalSites } from './local-sites.ts';
import type { Site } from './site.ts';
import { SiteCollector } from './site-collector.ts';
import { collectVariableSites } from './variable-sites.ts';

export interface ExtractedFunction {
  readonly file: string;
  readonly name: string;
  readonly startLine: number;
  readonly text: string;
  readonly sites: readonly Site[];
  readonly signature: string;
}

export function extractPackage(installed: InstalledPackage, cacheDirectory: string): ExtractedFunction[] {
  const files = readSourceFiles(installed.directory).map((file) => ({
    file,
    root: parseSource(file.text, file.language),
  }));
  const declarations = new Map<string, FileDeclarations>(
    files.map(({ file, root }) => [file.path, readDeclarations(file, root)]),
  );
  const data = collectIndexData(declarations);
  storeIndex(installed, data, cacheDirectory);
  const index = createPackageIndex(data);
  const used = new Set<string>();
  for (const { file, root } of files) collectIdentifiers(root, file.text, used);
  const members = new Set(
    data.declarations.filter(({ kind }) => kind === 'method' || kind === 'property').map(({ name }) => name),
  );
  const invented = new InventedNames(used, [...members]);
  const strings = [
    ...new Set(
      data.declarations
        .map(({ value }) => value ?? '')
        .filter((value) => /^['"][a-z][\w-]{2,14}['"]$/u.test(value))
        .map((value) => value.slice(1, -1)),
    ),
  ];

  const found: ExtractedFunction[] = [];
  for (const { file, root } of files) {
    const { shadowed, parameters } = namesDeclaredInFunctions(root, file.text);
    for (const source of findFunctions(file, root, new LineMap(file.text))) {
      const collector = new SiteCollector(source, file.text);
      const random = createRandom(deriveSeed(0, installed.name, file.path, source.startLine));
      collectLocalSites(collector);
      collectVariableSites(collector);
      collectGuardSites(collector);
      collectElsewhereSites(collector, { file: file.path, index, invented, strings, random, shadowed, parameters });
      collectBenignSites(collector);
      found.push({
        file: file.path,
        name: source.name,
        startLine: source.startLine,
        text: source.text,
        sites: collector.sites(),
        signature: cloneSignature(source.node, file.text),
      });
    }
  }
  return found;
}

function collectIdentifiers(root: SyntaxNode, text: string, used: Set<string>): void {
  visit(root, (node) => {
    if (/identifier/u.test(node.kind)) used.add(text.slice(node.start, node.end).replace(/^#/u, ''));
  });
}

const PARAMETER_HOLDERS = new Set([
  'formal_parameters',
  'required_parameter',
  'optional_parameter',
  'assignment_pattern',
  'rest_pattern',
  'catch_clause',
  'arrow_function',
  'object_assignment_pattern',
  'pair_pattern',
  'array_pattern',
]);

/** Parameters and destructured names; with the variables of functions, all that may hide a name of the module. */
function namesDeclaredInFunctions(root: SyntaxNode, text: string): { shadowed: Set<string>; parameters: Set<string> } {
  const shadowed = new Set<string>();
  const parameters = new Set<string>();
  visit(root, (node) => {
    if (node.kind !== 'identifier' && node.kind !== 'shorthand_property_identifier_pattern') return;
    const holder = node.parent;
    if (holder === undefined || isModuleLevel(node)) return;
    const name = text.slice(node.start, node.end);
    const isBound = node.kind === 'shorthand_property_identifier_pattern' || PARAMETER_HOLDERS.has(holder.kind);
    if (isBound && !(holder.kind === 'arrow_function' && holder.children.at(-1) === node)) parameters.add(name);
    if (isBound || (holder.kind === 'variable_declarator' && holder.children[0] === node)) shadowed.add(name);
  });
  return { shadowed, parameters };
}
