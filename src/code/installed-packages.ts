/**
 * Which npm packages the corpus holds: all that the corpus workspace names, with their dependencies, as far as they are
 * installed and permissively licensed. Invariant: the result depends only on what is installed, sorted by name.
 */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';

import { HoneError } from '../domain/errors.ts';

export interface InstalledPackage {
  readonly name: string;
  readonly version: string;
  readonly license: string;
  readonly directory: string;
}

export const DEFAULT_CORPUS_DIRECTORY = resolve(import.meta.dirname, '../../corpus');
export const DEFAULT_CACHE_DIRECTORY = resolve(import.meta.dirname, '../../.cache/hone');

const PERMISSIVE = /^(MIT|ISC|BSD|BSD-2-Clause|BSD-3-Clause|Apache-2\.0|MIT-0|0BSD)$/u;

interface Manifest {
  readonly name?: string;
  readonly version?: string;
  readonly license?: unknown;
  readonly dependencies?: Readonly<Record<string, string>>;
}

export function listInstalledPackages(corpusDirectory: string = DEFAULT_CORPUS_DIRECTORY): InstalledPackage[] {
  const manifest = readManifest(corpusDirectory);
  const wanted = Object.keys(manifest?.dependencies ?? {});
  const missing = wanted.filter((name) => locatePackage(name, corpusDirectory) === undefined);
  if (manifest === undefined || missing.length > 0) {
    throw new HoneError(
      'corpus-missing',
      manifest === undefined
        ? `There is no corpus workspace at ${corpusDirectory}.`
        : `${missing.length} of the ${wanted.length} corpus packages are not installed (first: ${missing[0]}).`,
      { cure: 'Run `npm ci` in the root of the repository: it installs the corpus workspace.' },
    );
  }
  const found = new Map<string, InstalledPackage>();
  const queue = [...wanted];
  const seen = new Set<string>();
  for (let name = queue.pop(); name !== undefined; name = queue.pop()) {
    if (seen.has(name)) continue;
    seen.add(name);
    const directory = locatePackage(name, corpusDirectory);
    if (directory === undefined) continue;
    const installed = readManifest(directory);
    if (installed?.version === undefined) continue;
    queue.push(...Object.keys(installed.dependencies ?? {}));
    const license = permissiveLicense(installed.license);
    if (license !== undefined) found.set(name, { name, version: installed.version, license, directory });
  }
  return [...found.values()].toSorted((a, b) => (a.name < b.name ? -1 : 1));
}

/** One installed package of the corpus; throws `corpus-missing` when it is not there. */
export function findInstalledPackage(
  name: string,
  corpusDirectory: string = DEFAULT_CORPUS_DIRECTORY,
): InstalledPackage {
  const directory = locatePackage(name, corpusDirectory);
  const manifest = directory === undefined ? undefined : readManifest(directory);
  if (directory === undefined || manifest?.version === undefined) {
    throw new HoneError('corpus-missing', `The package ${name} is not installed.`, {
      cure: 'Run `npm ci` in the root of the repository: it installs the corpus workspace.',
    });
  }
  return { name, version: manifest.version, license: permissiveLicense(manifest.license) ?? 'unknown', directory };
}

/** Changes when, and only when, another set of packages or versions is installed. */
export function fingerprintPackages(packages: readonly InstalledPackage[]): string {
  const hash = createHash('sha256');
  for (const { name, version } of packages) hash.update(`${name}@${version}\n`);
  return hash.digest('hex').slice(0, 16);
}

function locatePackage(name: string, corpusDirectory: string): string | undefined {
  for (const base of [corpusDirectory, dirname(corpusDirectory)]) {
    const directory = join(base, 'node_modules', name);
    if (existsSync(join(directory, 'package.json'))) return directory;
  }
  return undefined;
}

function readManifest(directory: string): Manifest | undefined {
  const path = join(directory, 'package.json');
  if (!existsSync(path)) return undefined;
  // package.json is npm's own format; only the fields named in Manifest are read, and each is checked where it is used.
  return JSON.parse(readFileSync(path, 'utf8')) as Manifest;
}

function permissiveLicense(license: unknown): string | undefined {
  if (typeof license !== 'string') return undefined;
  const choices = license.replaceAll(/[()]/gu, '').split(/\s+OR\s+/u);
  return choices.find((choice) => PERMISSIVE.test(choice));
}
