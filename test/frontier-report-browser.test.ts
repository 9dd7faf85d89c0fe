/**
 * The study's report in a real browser: drawn without scripts or network, every picture inside its frame, nothing wider than
 * the window on a desk or on a telephone. Needs a Chromium on the path and says so when there is none.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { chromiumPath, launchChromium, strayShapes } from './browser.fixture.ts';
import { inventRecord } from '../src/frontier/study-record.fixture.ts';
import { renderStudyReport } from '../src/frontier/study-report.ts';
import { summariseStudy } from '../src/frontier/study-summary.ts';

describe.skipIf(chromiumPath === undefined)("the study's report in Chromium", () => {
  let browser: Browser;
  let folder: string;
  let address: string;

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'hone-frontier-report-'));
    const file = join(folder, 'report.html');
    const record = inventRecord();
    const facts = [{ name: 'Time', value: '61 ns a rollout' }];
    const files = [
      { name: 'Results', path: 'runs/a-study-with-a-rather-long-name-that-has-to-wrap-somewhere/results.json' },
    ];
    writeFileSync(file, renderStudyReport({ record, summary: summariseStudy(record), form: 'sampled', facts, files }));
    address = pathToFileURL(file).href;
    if (chromiumPath !== undefined) browser = await launchChromium();
  });

  afterAll(async () => {
    await browser?.close();
    rmSync(folder, { recursive: true, force: true });
  });

  it.each([
    { width: 1280, height: 900, colorScheme: 'light' as const },
    { width: 1280, height: 900, colorScheme: 'dark' as const },
    { width: 390, height: 844, colorScheme: 'light' as const },
    { width: 390, height: 844, colorScheme: 'dark' as const },
  ])('fits $width pixels, $colorScheme', async ({ width, height, colorScheme }) => {
    const context = await browser.newContext({ viewport: { width, height }, colorScheme, javaScriptEnabled: false });
    const page = await context.newPage();
    const requests: string[] = [];
    const complaints: string[] = [];
    page.on('request', (request) => requests.push(request.url()));
    page.on('console', (message) => complaints.push(message.text()));
    page.on('pageerror', (error) => complaints.push(error.message));
    await page.goto(address);

    expect(requests).toEqual([address]);
    expect(complaints).toEqual([]);
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBeLessThanOrEqual(width);

    const charts = page.locator('svg.chart');
    expect(await charts.count()).toBe(15);
    expect(await strayShapes(page)).toEqual([]);

    // Labels of one picture may not lie on one another: ticks, titles, names of lines.
    const overlaps = await charts.evaluateAll((elements) =>
      elements.flatMap((chart) => {
        const texts = [...chart.querySelectorAll('text')].map((text) => ({ text, box: text.getBoundingClientRect() }));
        return texts.flatMap((one, index) =>
          texts.slice(index + 1).flatMap((other) => {
            const wide = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
            const high = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
            // Boxes are a little taller than the letters in them.
            return wide > 1 && high > 4 ? [`${one.text.textContent} | ${other.text.textContent}`] : [];
          }),
        );
      }),
    );
    expect(overlaps).toEqual([]);

    // Every table of numbers opens without a script, and scrolls in its own box.
    const numbers = page.locator('figure details').first();
    await numbers.locator('summary').click();
    expect(await numbers.locator('td').first().isVisible()).toBe(true);
    expect(await page.evaluate('document.documentElement.scrollWidth')).toBeLessThanOrEqual(width);

    expect(await page.evaluate('getComputedStyle(document.body).color')).not.toBe(
      await page.evaluate('getComputedStyle(document.body).backgroundColor'),
    );
    await context.close();
  });
});
