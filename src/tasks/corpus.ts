/**
 * The corpus: functions of installed npm packages with their sites, split by package. Extracted once per installed set
 * of packages and kept on disk; no third-party source is ever committed.
 * Invariant: no two functions of all splits differ only in names, comments or layout.
 */
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

import {
  DEFAULT_CACHE_DIRECTORY,
  DEFAULT_CORPUS_DIRECTORY,
  fingerprintPackages,
  type InstalledPackage,
  listInstalledPackages,
} from '../code/installed-packages.ts';
import { INDEX_FORMAT, openPackageIndex, type PackageIndex } from '../code/package-index.ts';
import { BUG_CATEGORIES, ELSEWHERE_CATEGORIES } from '../domain/task.ts';
import { deriveSeed } from '../domain/ids.ts';
import { type ExtractedFunction, extractPackage } from './extract.ts';
import type { Site } from './site.ts';
import { type Split, splitOf, SPLITS_BY_PRECEDENCE } from './splits.ts';

export type { Split } from './splits.ts';

export interface CorpusFunction {
  readonly package: string;
  readonly version: string;
  readonly file: string;
  readonly name: string;
  /** 1-based, in the file. */
  readonly startLine: number;
  readonly text: string;
  readonly sites: readonly Site[];
}

export interface CorpusPackage {
  readonly name: string;
  readonly version: string;
  readonly license: string;
  readonly functions: number;
}

export interface Corpus {
  readonly split: Split;
  readonly functions: readonly CorpusFunction[];
  readonly packages: readonly CorpusPackage[];
  /** By elsewhere kind, indexes into `functions`: one for each line that offers a site, so that rich functions come more often. */
  readonly elsewhere: ReadonlyMap<string, readonly number[]>;
  index(packageName: string): Promise<PackageIndex>;
}

/** Raised whenever functions or sites are found, split or stored differently. */
const CORPUS_FORMAT = 10;
const MAX_FUNCTIONS_OF_A_PACKAGE = 700;
const MIN_CHANGED_LINES = 2;

interface SplitData {
  readonly functions: readonly CorpusFunction[];
  readonly packages: readonly CorpusPackage[];
  /** Of all functions that were found, also those that were not kept. */
  readonly signatures: readonly string[];
}

export interface CorpusOptions {
  readonly split: Split;
  readonly corpusDirectory?: string;
  readonly cacheDirectory?: string;
  readonly maxCharacters?: number;
  readonly maxLines?: number;
}

/** Rejects with `corpus-missing` when the corpus workspace is not installed. */
export function openCorpus(options: CorpusOptions): Promise<Corpus> {
  const { split, corpusDirectory = DEFAULT_CORPUS_DIRECTORY, cacheDirectory = DEFAULT_CACHE_DIRECTORY } = options;
  const { maxCharacters = Number.POSITIVE_INFINITY, maxLines = Number.POSITIVE_INFINITY } = options;
  return Promise.resolve().then(() => {
    const installed = listInstalledPackages(corpusDirectory);
    const data = loadSplit(split, installed, cacheDirectory);
    const functions = data.functions.filter(({ text }) => text.length <= maxCharacters && countLines(text) <= maxLines);
    const elsewhere = new Map<string, number[]>();
    functions.forEach(({ sites }, index) => {
      const offered = new Map<string, Set<number>>();
      for (const { kind, lines } of sites)
        if (isElsewhere(kind)) offered.set(kind, new Set([...(offered.get(kind) ?? []), ...lines]));
      for (const [kind, lines] of offered) for (const _ of lines) listOf(elsewhere, kind).push(index);
    });
    const indexes = new Map<string, Promise<PackageIndex>>();
    return {
      split,
      functions,
      packages: data.packages,
      elsewhere,
      index: (packageName: string): Promise<PackageIndex> => {
        const opened = indexes.get(packageName) ?? openPackageIndex(packageName, { corpusDirectory, cacheDirectory });
        indexes.set(packageName, opened);
        return opened;
      },
    };
  });
}

function isElsewhere(kind: string): boolean {
  return (ELSEWHERE_CATEGORIES as readonly string[]).includes(kind);
}

function listOf(lists: Map<string, number[]>, kind: string): number[] {
  const list = lists.get(kind) ?? [];
  lists.set(kind, list);
  return list;
}

function countLines(text: string): number {
  let count = 1;
  for (let at = text.indexOf('\n'); at !== -1; at = text.indexOf('\n', at + 1)) count++;
  return count;
}

function loadSplit(split: Split, installed: readonly InstalledPackage[], cacheDirectory: string): SplitData {
  const path = join(
    cacheDirectory,
    'corpus',
    `${fingerprintPackages(installed)}.${INDEX_FORMAT}.${CORPUS_FORMAT}.${split}.json`,
  );
  try {
    // Written below under a name that carries the formats, and moved into place whole.
    return JSON.parse(readFileSync(path, 'utf8')) as SplitData;
  } catch {
    // Absent or unreadable: it is extracted again.
  }
  const taken = new Set<string>();
  for (const earlier of SPLITS_BY_PRECEDENCE) {
    if (earlier === split) break;
    for (const signature of loadSplit(earlier, installed, cacheDirectory).signatures) taken.add(signature);
  }
  const data = extractSplit(
    installed.filter(({ name }) => splitOf(name) === split),
    { taken, cacheDirectory },
  );
  mkdirSync(dirname(path), { recursive: true });
  const partial = `${path}.${process.pid}.partial`;
  writeFileSync(partial, JSON.stringify(data));
  renameSync(partial, path);
  return data;
}

function extractSplit(
  packages: readonly InstalledPackage[],
  { taken, cacheDirectory }: { taken: Set<string>; cacheDirectory: string },
): SplitData {
  const functions: CorpusFunction[] = [];
  const kept: CorpusPackage[] = [];
  const signatures: string[] = [];
  for (const installed of packages) {
    const fresh: ExtractedFunction[] = [];
    for (const candidate of extractPackage(installed, cacheDirectory)) {
      if (taken.has(candidate.signature)) continue;
      taken.add(candidate.signature);
      signatures.push(candidate.signature);
      if (changeableLines(candidate.sites) >= MIN_CHANGED_LINES) fresh.push(candidate);
    }
    const chosen = sampleFunctions(fresh);
    if (chosen.length === 0) continue;
    const { name, version, license } = installed;
    kept.push({ name, version, license, functions: chosen.length });
    for (const { signature: _, ...rest } of chosen) functions.push({ package: name, version, ...rest });
  }
  return { functions, packages: kept, signatures };
}

function changeableLines(sites: readonly Site[]): number {
  const lines = new Set<number>();
  for (const site of sites)
    if ((BUG_CATEGORIES as readonly string[]).includes(site.kind)) for (const line of site.lines) lines.add(line);
  return lines.size;
}

/** At most so many of a package that none outweighs the others, in file order. */
function sampleFunctions(functions: readonly ExtractedFunction[]): ExtractedFunction[] {
  if (functions.length <= MAX_FUNCTIONS_OF_A_PACKAGE) return [...functions];
  const ranked = functions.map((candidate, index) => ({ index, rank: deriveSeed(0, candidate.signature) }));
  ranked.sort((a, b) => a.rank - b.rank);
  const chosen = new Set(ranked.slice(0, MAX_FUNCTIONS_OF_A_PACKAGE).map(({ index }) => index));
  return functions.filter((_, index) => chosen.has(index));
}
