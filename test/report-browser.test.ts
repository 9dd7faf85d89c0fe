/**
 * The report page in a real browser: drawn without scripts or network, every curve inside its frame, nothing wider than
 * the window on a desk or on a telephone. Needs a Chromium on the path and says so when there is none.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { chromiumPath, launchChromium, strayShapes } from './browser.fixture.ts';
import { inventReport } from '../src/eval/report.fixture.ts';
import { renderReport } from '../src/eval/report.ts';

describe.skipIf(chromiumPath === undefined)('report page in Chromium', () => {
  let browser: Browser;
  let folder: string;
  let address: string;

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'hone-report-'));
    const file = join(folder, 'report.html');
    writeFileSync(file, renderReport(inventReport(3)));
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
    expect(await charts.count()).toBeGreaterThan(8);
    expect(await strayShapes(page)).toEqual([]);

    expect(await page.evaluate('getComputedStyle(document.body).color')).not.toBe(
      await page.evaluate('getComputedStyle(document.body).backgroundColor'),
    );
    await context.close();
  });
});
