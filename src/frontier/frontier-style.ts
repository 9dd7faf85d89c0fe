/**
 * Styles of the x-y charts and of the pages about the frontier, beyond what eval's report-style.ts has: dashes, marks, labels,
 * the grid of panels. Colours come from the variables of that file, so light and dark are right without a second list.
 */

/** Serves inside a page and inside a standalone SVG alike. */
export const XY_CHART_STYLE = [
  '.line{fill:none;stroke-linejoin:round;stroke-linecap:round}.strokes{fill:none;stroke-width:1.6;stroke-linecap:round}.hollow{fill:var(--ground);stroke-width:1.6}.rim:not(.strokes,.hollow){stroke:var(--ground);stroke-width:1.2}.strokes.rim,.hollow.rim{stroke-width:2.6}',
  '.l-ink{stroke:var(--ink)}.l-soft{stroke:var(--soft)}.s-ink{fill:var(--ink)}.s-soft{fill:var(--soft)}',
  '.dashed{stroke-dasharray:5 4}.dotted{stroke-dasharray:.1 4}.dash-dotted{stroke-dasharray:7 4 .1 4}.long-dashed{stroke-dasharray:11 4}',
  '.grid{fill:none}.zero{stroke:var(--soft);opacity:.7}.name{fill:var(--soft)}.title{font-size:15px;font-weight:600}',
  '.label{font-size:11px;font-weight:600;paint-order:stroke;stroke:var(--ground);stroke-width:3px;stroke-linejoin:round}',
].join('');

/** For pages, after PAGE_STYLE and XY_CHART_STYLE. */
export const FRONTIER_PAGE_STYLE = [
  '.xy{margin-bottom:16px}.xy .chart{margin-top:0}.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));gap:14px 20px;align-items:start}.panels>.chart{max-width:520px}',
  '.lead{max-width:88ch;margin-bottom:14px}.small{font-size:13px}.compared thead tr:first-child th{text-align:center}.compared thead tr:first-child th:first-child{text-align:left}.compared .first>*{border-top:2px solid var(--line)}td.soft{color:var(--soft)}.compared td{position:relative}.compared td i{position:absolute;font-style:normal}',
  '.keys{display:flex;flex-wrap:wrap;gap:3px 16px;list-style:none;margin:0 0 10px;padding:0;font-size:13px}.keys li{display:flex;align-items:center;gap:6px}.keys svg{flex:none}',
  '.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:16px}.pair .xy{margin:0}pre{margin:0;padding:12px 14px;font-size:13px;line-height:1.45}',
].join('');
