import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

import { expect, test } from 'vitest';

import { ELSEWHERE_CATEGORIES } from '../domain/task.ts';
import { type Corpus, openCorpus } from './corpus.ts';

// The first extraction of all splits takes about a minute on two cores; later runs read the cache.
const EXTRACTION_MS = 300_000;

const openAll = (): Promise<Corpus[]> =>
  Promise.all((['heldout', 'rl', 'pretrain'] as const).map((split) => openCorpus({ split })));

test(
  'at least 10,000 functions of 60 permissively licensed packages',
  async () => {
    const corpora = await openAll();
    const packages = corpora.flatMap((corpus) => corpus.packages);
    expect(corpora.reduce((sum, corpus) => sum + corpus.functions.length, 0)).toBeGreaterThanOrEqual(10_000);
    expect(packages.length).toBeGreaterThanOrEqual(60);
    for (const { license } of packages)
      expect(license).toMatch(/^(MIT|MIT-0|0BSD|ISC|BSD(-[23]-Clause)?|Apache-2\.0)$/u);
  },
  EXTRACTION_MS,
);

test(
  'splits share no package and no text',
  async () => {
    const corpora = await openAll();
    const packages = corpora.flatMap((corpus) => corpus.packages.map(({ name }) => name));
    expect(new Set(packages).size).toBe(packages.length);
    const normalised = corpora.flatMap((corpus) => corpus.functions.map(({ text }) => text.replaceAll(/\s+/gu, ' ')));
    // Whole lines may repeat around different functions of one file, so a few texts may; never as many as a shared file has.
    expect(normalised.length - new Set(normalised).size).toBeLessThan(normalised.length / 500);
    const [heldOut, ...others] = corpora.map((corpus) => new Set(corpus.functions.map(({ text }) => text)));
    for (const other of others) for (const text of other) expect(heldOut?.has(text)).toBe(false);
  },
  EXTRACTION_MS,
);

test(
  'every kind whose evidence lies elsewhere has functions in RL and held-out packages',
  async () => {
    for (const split of ['rl', 'heldout'] as const) {
      const corpus = await openCorpus({ split });
      for (const kind of ELSEWHERE_CATEGORIES)
        expect(new Set(corpus.elsewhere.get(kind)).size, `${split} ${kind}`).toBeGreaterThanOrEqual(50);
    }
  },
  EXTRACTION_MS,
);

test(
  'sites keep their invariants',
  async () => {
    const corpus = await openCorpus({ split: 'heldout' });
    for (const { text, sites } of corpus.functions) {
      const lines = text.split('\n').length;
      for (const site of sites) {
        for (let index = 0; index < site.spans.length; index += 2) {
          const standing = text.slice(site.spans[index], site.spans[index + 1]);
          expect([site.right, site.same]).toContain(standing);
          expect(standing).not.toContain('\n');
        }
        expect(site.wrong === site.right || site.wrong === site.same).toBe(
          site.wrong === undefined && site.same === undefined,
        );
        expect(site.lines.every((line) => line >= 0 && line < lines)).toBe(true);
      }
    }
  },
  EXTRACTION_MS,
);

test(
  'size limits filter',
  async () => {
    const corpus = await openCorpus({ split: 'heldout', maxCharacters: 700, maxLines: 30 });
    expect(corpus.functions.length).toBeGreaterThan(600);
    for (const { text } of corpus.functions) expect(text.length <= 700 && text.split('\n').length <= 30).toBe(true);
  },
  EXTRACTION_MS,
);

test('a corpus that is not installed is one clear error', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'hone-corpus-'));
  try {
    mkdirSync(join(directory, 'corpus'));
    await expect(openCorpus({ split: 'rl', corpusDirectory: join(directory, 'corpus') })).rejects.toMatchObject({
      code: 'corpus-missing',
      cure: expect.stringContaining('npm ci'),
    });
    writeFileSync(join(directory, 'corpus/package.json'), JSON.stringify({ dependencies: { 'not-there': '1.0.0' } }));
    await expect(openCorpus({ split: 'rl', corpusDirectory: join(directory, 'corpus') })).rejects.toThrow(
      /1 of the 1 corpus packages are not installed \(first: not-there\)/u,
    );
  } finally {
    rmSync(directory, { recursive: true });
  }
});

test('extraction gives the same bytes again', async () => {
  const { extractPackage } = await import('./extract.ts');
  const { findInstalledPackage } = await import('../code/installed-packages.ts');
  const directory = mkdtempSync(join(tmpdir(), 'hone-cache-'));
  try {
    const express = findInstalledPackage('express');
    const first = JSON.stringify(extractPackage(express, directory));
    expect(first.length).toBeGreaterThan(10_000);
    expect(JSON.stringify(extractPackage(express, directory))).toBe(first);
  } finally {
    rmSync(directory, { recursive: true });
  }
});

test('no third-party source is committed', () => {
  const root = resolve(import.meta.dirname, '../..');
  const files = execFileSync('git', ['ls-files', 'corpus'], { cwd: root, encoding: 'utf8' }).trim().split('\n');
  expect(files).toEqual(['corpus/package.json']);
});
