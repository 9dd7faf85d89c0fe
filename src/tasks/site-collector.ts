/**
 * Gathers the sites of one function: turns tree nodes of a file into spans of the function's text, and refuses what
 * would break a site's invariants. Invariant: at most `MAX_SITES_OF_A_KIND` of a kind, spread by a fixed hash.
 */
import { deriveSeed } from '../domain/ids.ts';
import { visit, type SyntaxNode } from '../code/syntax-tree.ts';
import type { SourceFunction } from '../code/functions.ts';
import type { Evidence, Site, SiteKind } from './site.ts';

const MAX_SITES_OF_A_KIND = 6;

export interface SiteTexts {
  readonly right: string;
  readonly same?: string;
  readonly wrong?: string;
  readonly evidence?: Evidence;
}

export class SiteCollector {
  readonly source: SourceFunction;
  readonly #fileText: string;
  readonly #sites: Site[] = [];
  readonly #lineStarts: number[] = [0];

  constructor(source: SourceFunction, fileText: string) {
    this.source = source;
    this.#fileText = fileText;
    for (let at = source.text.indexOf('\n'); at !== -1; at = source.text.indexOf('\n', at + 1))
      this.#lineStarts.push(at + 1);
  }

  readonly textOf = (node: SyntaxNode): string => this.#fileText.slice(node.start, node.end);

  between(start: SyntaxNode, end: SyntaxNode): string {
    return this.#fileText.slice(start.end, end.start);
  }

  /** 0-based line of the function that an offset of its text lies on. */
  lineOf(offset: number): number {
    let line = 0;
    while (line + 1 < this.#lineStarts.length && (this.#lineStarts[line + 1] ?? 0) <= offset) line++;
    return line;
  }

  lineText(line: number): string {
    const start = this.#lineStarts[line] ?? 0;
    const next = this.#lineStarts[line + 1];
    return this.source.text.slice(start, next === undefined ? this.source.text.length : next - 1);
  }

  lineStart(line: number): number {
    return this.#lineStarts[line] ?? 0;
  }

  /** Adds a site for the text from `first` to `last`; silently refuses what spans lines or changes nothing. */
  add(kind: SiteKind, first: SyntaxNode, texts: SiteTexts, last: SyntaxNode = first): Site | undefined {
    return this.addSpans(kind, [first.start - this.source.offset, last.end - this.source.offset], texts);
  }

  addSpans(kind: SiteKind, spans: readonly number[], texts: SiteTexts): Site | undefined {
    const { right, same, wrong } = texts;
    if ([right, same, wrong].some((text) => text?.includes('\n') === true)) return undefined;
    const compact = (text: string): string => text.replaceAll(/\s+/gu, ' ');
    if (
      wrong !== undefined &&
      (compact(wrong) === compact(right) || (same !== undefined && compact(wrong) === compact(same)))
    )
      return undefined;
    if (same !== undefined && same === right) return undefined;
    if (same === undefined && wrong === undefined) return undefined;
    const lines = new Set<number>();
    for (let index = 0; index < spans.length; index += 2) {
      const start = spans[index] ?? 0;
      const end = spans[index + 1] ?? 0;
      const standing = this.source.text.slice(start, end);
      if (start < 0 || (standing !== right && standing !== same)) return undefined;
      lines.add(this.lineOf(start));
    }
    const site: Site = { kind, spans, lines: [...lines].toSorted((a, b) => a - b), ...texts };
    this.#sites.push(site);
    return site;
  }

  sites(): Site[] {
    const byKind = new Map<SiteKind, Site[]>();
    for (const site of this.#sites) byKind.set(site.kind, [...(byKind.get(site.kind) ?? []), site]);
    const kept: Site[] = [];
    for (const [kind, list] of byKind) {
      const order = list.map((site, index) => ({
        site,
        rank: deriveSeed(0, kind, this.source.name, index, site.right),
      }));
      order.sort((a, b) => a.rank - b.rank);
      kept.push(...order.slice(0, MAX_SITES_OF_A_KIND).map((entry) => entry.site));
    }
    return kept;
  }

  visitBody(enter: (node: SyntaxNode) => boolean | void): void {
    visit(this.source.node, enter);
  }
}
