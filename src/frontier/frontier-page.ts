/** The frame of the pages of `hone frontier fit` and `simulate`: head, facts, verdicts, sections; no script, no network. */
import { escapeHtml } from '../eval/charts.ts';
import { PAGE_STYLE } from '../eval/report-style.ts';
import { FRONTIER_PAGE_STYLE, XY_CHART_STYLE } from './frontier-style.ts';

export interface FrontierPage {
  readonly title: string;
  readonly subtitle: string;
  readonly facts: readonly { readonly name: string; readonly value: string }[];
  /** Sentences, shown in this order. */
  readonly verdicts: readonly string[];
  /** `html` is markup already; everything else is escaped here. */
  readonly sections: readonly { readonly title: string; readonly html: string }[];
  readonly footer: string;
}

const OWN_STYLE =
  '.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:16px}.pair .xy{margin:0}pre{margin:0;padding:12px 14px;font-size:13px;line-height:1.45}';

export function renderFrontierPage({ title, subtitle, facts, verdicts, sections, footer }: FrontierPage): string {
  const shown = facts.map(({ name, value }) => `<div><dt>${escapeHtml(name)}</dt><dd>${escapeHtml(value)}</dd></div>`);
  const says = verdicts.map((sentence) => `<li>${escapeHtml(sentence)}</li>`);
  const parts = [
    ...(says.length === 0 ? [] : [{ title: 'What it says', html: `<ul class="verdict">${says.join('')}</ul>` }]),
    ...sections,
  ];
  return [
    '<!doctype html><html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width,initial-scale=1">',
    `<title>${escapeHtml(title)} · hone frontier</title>`,
    `<style>${PAGE_STYLE}${XY_CHART_STYLE}${FRONTIER_PAGE_STYLE}${OWN_STYLE}</style></head><body>`,
    `<header><h1>${escapeHtml(title)}</h1><p class="soft">${escapeHtml(subtitle)}</p><dl class="facts">${shown.join('')}</dl></header>`,
    `<main>${parts.map((part) => `<section><h2>${escapeHtml(part.title)}</h2>${part.html}</section>`).join('')}</main>`,
    `<footer class="soft">${escapeHtml(footer)}</footer></body></html>\n`,
  ].join('');
}
