/**
 * What a package declares, ready to be asked by name: the evidence behind a look-up. Built once from the package's
 * source, kept on disk under (name, version, format), opened in milliseconds.
 * Invariant: the same installed package gives the same answers; ties go to the first declaration in file order.
 */
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { dirname, join, posix } from 'node:path';

import { type Declaration, type FileDeclarations, readDeclarations } from './declarations.ts';
import type { ImportedName } from './imports.ts';
import {
  DEFAULT_CACHE_DIRECTORY,
  DEFAULT_CORPUS_DIRECTORY,
  findInstalledPackage,
  type InstalledPackage,
} from './installed-packages.ts';
import { readSourceFiles } from './source-files.ts';
import { parseSource } from './syntax-tree.ts';

export type { Declaration } from './declarations.ts';

export interface LookupOrigin {
  readonly file: string;
  /** 1-based. */
  readonly line: number;
  /** What stands before the dot: `this`, a variable, or nothing. */
  readonly receiver?: string;
}

export interface PackageIndex {
  /** The best match: same scope or class, same file, imported, then anywhere in the package. */
  lookUp(name: string, from: LookupOrigin): Declaration | undefined;
  /** All declarations of a name, in file order. */
  declarationsOf(name: string): readonly Declaration[];
  /** Each declared name once, in file order. */
  readonly names: readonly string[];
}

export interface IndexData {
  readonly declarations: readonly Declaration[];
  readonly imports: Readonly<Record<string, readonly ImportedName[]>>;
}

/** Raised whenever declarations are read or stored differently. */
export const INDEX_FORMAT = 3;

export function openPackageIndex(
  packageName: string,
  options: { corpusDirectory?: string; cacheDirectory?: string } = {},
): Promise<PackageIndex> {
  const { corpusDirectory = DEFAULT_CORPUS_DIRECTORY, cacheDirectory = DEFAULT_CACHE_DIRECTORY } = options;
  return Promise.resolve().then(() => {
    const installed = findInstalledPackage(packageName, corpusDirectory);
    const cached = readIndexFile(indexPath(installed, cacheDirectory));
    if (cached !== undefined) return createPackageIndex(cached);
    const data = buildIndexData(installed);
    storeIndex(installed, data, cacheDirectory);
    return createPackageIndex(data);
  });
}

export function storeIndex(installed: InstalledPackage, data: IndexData, cacheDirectory: string): void {
  const path = indexPath(installed, cacheDirectory);
  mkdirSync(dirname(path), { recursive: true });
  const partial = `${path}.${process.pid}.partial`;
  writeFileSync(partial, JSON.stringify(data));
  renameSync(partial, path);
}

export function collectIndexData(files: ReadonlyMap<string, FileDeclarations>): IndexData {
  const declarations: Declaration[] = [];
  const imports: Record<string, readonly ImportedName[]> = {};
  for (const [path, file] of files) {
    declarations.push(...file.declarations);
    if (file.imports.length > 0) imports[path] = file.imports;
  }
  return { declarations, imports };
}

function buildIndexData(installed: InstalledPackage): IndexData {
  const files = new Map<string, FileDeclarations>();
  for (const file of readSourceFiles(installed.directory))
    files.set(file.path, readDeclarations(file, parseSource(file.text, file.language)));
  return collectIndexData(files);
}

function indexPath(installed: InstalledPackage, cacheDirectory: string): string {
  return join(cacheDirectory, 'index', `${installed.name.replace('/', '+')}@${installed.version}.${INDEX_FORMAT}.json`);
}

function readIndexFile(path: string): IndexData | undefined {
  try {
    // Written by storeIndex under a name that carries the format, and moved into place whole.
    return JSON.parse(readFileSync(path, 'utf8')) as IndexData;
  } catch {
    // Absent or unreadable: it is built again.
    return undefined;
  }
}

export function createPackageIndex(data: IndexData): PackageIndex {
  const byName = new Map<string, Declaration[]>();
  const classesByFile = new Map<string, Declaration[]>();
  const functionsByFile = new Map<string, Declaration[]>();
  const files = new Set<string>();
  for (const declaration of data.declarations) {
    const list = byName.get(declaration.name);
    if (list === undefined) byName.set(declaration.name, [declaration]);
    else list.push(declaration);
    files.add(declaration.file);
    if (declaration.endLine === undefined) continue;
    const scopes = declaration.kind === 'class' ? classesByFile : functionsByFile;
    const inFile = scopes.get(declaration.file);
    if (inFile === undefined) scopes.set(declaration.file, [declaration]);
    else inFile.push(declaration);
  }
  const importOf = (file: string, local: string): ImportedName | undefined =>
    data.imports[file]?.find((entry) => entry.local === local);
  const fileOf = (from: string, specifier: string): string | undefined => resolveSpecifier(files, from, specifier);

  const lookUp = (name: string, from: LookupOrigin): Declaration | undefined => {
    const candidates = byName.get(name) ?? [];
    const imported = from.receiver === undefined ? importOf(from.file, name) : importOf(from.file, from.receiver);
    const importedFile = imported === undefined ? undefined : fileOf(from.file, imported.from);
    const searched =
      imported !== undefined && from.receiver === undefined && imported.imported !== name
        ? (byName.get(imported.imported) ?? [])
        : candidates;
    const scope: LookupScope = {
      from,
      className: innermost(classesByFile.get(from.file), from.line)?.name,
      functionName: innermost(functionsByFile.get(from.file), from.line)?.name,
      importedFile,
    };
    let best: Declaration | undefined;
    let bestScore = 0;
    for (const candidate of searched === candidates ? candidates : [...searched, ...candidates]) {
      const score = scoreOf(candidate, scope);
      if (score > bestScore) {
        best = candidate;
        bestScore = score;
      }
    }
    return best;
  };
  return { lookUp, declarationsOf: (name) => byName.get(name) ?? [], names: [...byName.keys()] };
}

interface LookupScope {
  readonly from: LookupOrigin;
  readonly className: string | undefined;
  readonly functionName: string | undefined;
  readonly importedFile: string | undefined;
}

function scoreOf(candidate: Declaration, scope: LookupScope): number {
  const { from, className, functionName, importedFile } = scope;
  const sameFile = candidate.file === from.file;
  const isMember = candidate.kind === 'method' || candidate.kind === 'property';
  // A property that carries a value says more than a bare mention of the same name.
  const detail = candidate.value === undefined && candidate.kind === 'property' ? 0 : 1;
  if (importedFile !== undefined && candidate.file === importedFile) return 90 + detail;
  if (from.receiver === 'this' || from.receiver === 'super') {
    if (!isMember) return sameFile ? 4 : 2;
    if (sameFile && className !== undefined && candidate.container === className) return 80 + detail;
    return (sameFile ? 40 : 20) + detail;
  }
  if (from.receiver === undefined) {
    if (sameFile && isMember && candidate.container !== undefined && candidate.container === functionName)
      return 70 + detail;
    if (!isMember) return (sameFile ? 60 : 12) + detail;
    return (sameFile ? 30 : 10) + detail;
  }
  if (isMember && candidate.container?.toLowerCase() === from.receiver.toLowerCase())
    return (sameFile ? 80 : 60) + detail;
  if (!isMember) return sameFile ? 6 : 2;
  return (sameFile ? 40 : 20) + detail;
}

function innermost(scopes: readonly Declaration[] | undefined, line: number): Declaration | undefined {
  let best: Declaration | undefined;
  for (const scope of scopes ?? [])
    if (scope.line <= line && line <= (scope.endLine ?? 0) && (best === undefined || scope.line >= best.line))
      best = scope;
  return best;
}

const SPECIFIER_ENDINGS = ['', '.js', '.ts', '.mjs', '.cjs', '/index.js', '/index.ts', '/index.mjs'];

function resolveSpecifier(files: ReadonlySet<string>, from: string, specifier: string): string | undefined {
  if (!specifier.startsWith('.')) return undefined;
  const base = posix.join(posix.dirname(from), specifier);
  for (const ending of SPECIFIER_ENDINGS) if (files.has(base + ending)) return base + ending;
  const asTypeScript = base.replace(/\.([cm]?)js$/u, '.$1ts');
  return files.has(asTypeScript) ? asTypeScript : undefined;
}
