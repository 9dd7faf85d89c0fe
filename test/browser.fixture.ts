/** Chromium for tests that look at pages: where it is, how it starts, and what in a page's pictures is out of its place. */
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';

import { chromium } from 'playwright-core';
import type { Browser, Page } from 'playwright-core';

/** Undefined where the path has no Chromium: such tests then say that they were skipped. */
export const chromiumPath = (process.env['PATH'] ?? '')
  .split(delimiter)
  .flatMap((folder) => ['chromium', 'chromium-browser', 'google-chrome'].map((name) => join(folder, name)))
  .find((path) => existsSync(path));

export async function launchChromium(): Promise<Browser> {
  if (chromiumPath === undefined) throw new Error('there is no Chromium on the path');
  // Root in a container has neither a sandbox nor a large /dev/shm.
  return chromium.launch({
    executablePath: chromiumPath,
    args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu'],
  });
}

/** A shape of the page that is not where it should be, in words. */
export interface Stray {
  readonly what: string;
  readonly by: number;
}

/** Charts that are too small to read, and their parts that lie outside of their frame by more than a pixel. */
export async function strayShapes(page: Page): Promise<Stray[]> {
  return page.locator('svg.chart').evaluateAll((elements) => {
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
}
