/** The frame of every page of `hone frontier`: head, facts, what it says, sections; no script, no network. */
import { escapeHtml } from '../eval/charts.ts';
import { PAGE_STYLE } from '../eval/report-style.ts';
import { FRONTIER_PAGE_STYLE, XY_CHART_STYLE } from './frontier-style.ts';

export interface Definition {
  readonly name: string;
  readonly value: string;
  readonly isCode?: boolean;
}

export interface FrontierPage {
  readonly title: string;
  readonly subtitle: string;
  /** Under the title; none where a section has them. */
  readonly facts?: readonly Definition[];
  /** The paragraph before the sentences. */
  readonly lead?: string;
  /** Sentences, shown in this order. */
  readonly verdicts: readonly string[];
  /** `html` is markup already; everything else is escaped here. Sections without any are left out. */
  readonly sections: readonly { readonly title: string; readonly html: string }[];
  readonly footer: string;
}

export function renderFrontierPage(page: FrontierPage): string {
  const { title, subtitle, facts = [], lead = '', verdicts, sections, footer } = page;
  const says = [
    lead === '' ? '' : `<p class="lead">${unbroken(lead)}</p>`,
    verdicts.length === 0
      ? ''
      : `<ul class="verdict">${verdicts.map((sentence) => `<li>${unbroken(sentence)}</li>`).join('')}</ul>`,
  ].join('');
  const parts = [{ title: 'What it says', html: says }, ...sections].filter(({ html }) => html !== '');
  return [
    '<!doctype html><html lang="en"><head><meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width,initial-scale=1">',
    `<title>${escapeHtml(title)} · hone frontier</title>`,
    `<style>${PAGE_STYLE}${XY_CHART_STYLE}${FRONTIER_PAGE_STYLE}</style></head><body>`,
    `<header><h1>${escapeHtml(title)}</h1><p class="soft">${escapeHtml(subtitle)}</p>${facts.length === 0 ? '' : renderDefinitions(facts)}</header>`,
    `<main>${parts.map((part) => `<section><h2>${escapeHtml(part.title)}</h2>${part.html}</section>`).join('')}</main>`,
    `<footer class="soft">${escapeHtml(footer)}</footer></body></html>\n`,
  ].join('');
}

export function renderDefinitions(definitions: readonly Definition[]): string {
  const items = definitions.map(({ name, value, isCode = false }) => {
    const text = isCode ? `<code>${escapeHtml(value)}</code>` : escapeHtml(value);
    return `<div><dt>${escapeHtml(name)}</dt><dd>${text}</dd></div>`;
  });
  return `<dl class="facts">${items.join('')}</dl>`;
}

/** A box that a wide table scrolls in; it can be reached by the keyboard. */
export function renderScrolling(markup: string): string {
  return `<div class="scroll" tabindex="0">${markup}</div>`;
}

/** A number stays on one line with its unit, and α with its value. */
function unbroken(text: string): string {
  return escapeHtml(text).replaceAll(' %', '\u00a0%').replaceAll('α = ', 'α\u00a0=\u00a0');
}
