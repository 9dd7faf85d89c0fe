/**
 * The report page in a real browser: drawn without scripts or network, every curve inside its frame, nothing wider than
 * the window on a desk or on a telephone. Needs a Chromium on the path and says so when there is none.
 */
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { pathToFileURL } from 'node:url';

import { chromium } from 'playwright-core';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { inventReport } from '../src/eval/report.fixture.ts';
import { renderReport } from '../src/eval/report.ts';

const executablePath = (process.env['PATH'] ?? '')
  .split(delimiter)
  .flatMap((folder) => ['chromium', 'chromium-browser', 'google-chrome'].map((name) => join(folder, name)))
  .find((path) => existsSync(path));

/** A shape of the page that is not where it should be, in words. */
interface Stray {
  readonly what: string;
  readonly by: number;
}

describe.skipIf(executablePath === undefined)('report page in Chromium', () => {
  let browser: Browser;
  let folder: string;
  let address: string;

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'hone-report-'));
    const file = join(folder, 'report.html');
    writeFileSync(file, renderReport(inventReport(3)));
    address = pathToFileURL(file).href;
    if (executablePath === undefined) return;
    // Root in a container has neither a sandbox nor a large /dev/shm.
    browser = await chromium.launch({
      executablePath,
      args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu'],
    });
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
    const strays = await charts.evaluateAll((elements) => {
      const found: Stray[] = [];
      for (const chart of elements) {
        const frame = chart.getBoundingClientRect();
        if (frame.width < 200 || frame.height < 80)
          found.push({ what: `a chart of ${frame.width} by ${frame.height}`, by: 0 });
        for (const part of chart.querySelectorAll('path, polyline, rect, circle, text')) {
          const box = part.getBoundingClientRect();
          const by = Math.max(
            frame.left - box.left,
            box.right - frame.right,
            frame.top - box.top,
            box.bottom - frame.bottom,
          );
          // One pixel for strokes that lie on the frame.
          if (by > 1) found.push({ what: `${part.tagName} ${part.textContent}`, by });
        }
      }
      return found;
    });
    expect(strays).toEqual([]);

    expect(await page.evaluate('getComputedStyle(document.body).color')).not.toBe(
      await page.evaluate('getComputedStyle(document.body).backgroundColor'),
    );
    await context.close();
  });
});
