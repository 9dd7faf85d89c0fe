/**
 * Styles of the report and of the charts inside it, as text. Colours are named once for light and once for dark; the six
 * series colours keep apart under the common forms of colour blindness and have a contrast of 3:1 on their ground.
 */

const LIGHT =
  '--ground:#fff;--page:#f6f7f9;--ink:#1b1f24;--soft:#59636e;--line:#dde1e6;--c0:#1f6fd6;--c1:#c4570a;--c2:#0b8467;--c3:#8848c0;--c4:#747c86;--c5:#c02c74;';
const DARK =
  '--ground:#15191f;--page:#0d1014;--ink:#e6e9ee;--soft:#9aa4af;--line:#2b323b;--c0:#6aa9ff;--c1:#f29a4d;--c2:#3fcaa3;--c3:#c596f5;--c4:#9aa3ad;--c5:#f47db6;';

const SERIES = [0, 1, 2, 3, 4, 5].map(
  (index) => `.s${index}{fill:var(--c${index})}.l${index}{stroke:var(--c${index})}`,
);

/** Serves inside the page and inside a standalone SVG alike. */
export const CHART_STYLE = [
  `:root{color-scheme:light dark;${LIGHT}}`,
  `@media(prefers-color-scheme:dark){:root{${DARK}}}`,
  'text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}',
  '.ground{fill:var(--ground)}.grid{stroke:var(--line);stroke-width:1}',
  '.axis{font-size:11px;fill:var(--soft);font-variant-numeric:tabular-nums}.legend{font-size:12px}.panel{font-size:14px;font-weight:600}',
  '.raw,.mean{fill:none;stroke-linejoin:round;stroke-linecap:round}.raw{stroke-width:1;opacity:.35}.mean{stroke-width:2}',
  ...SERIES,
].join('');

export const PAGE_STYLE = [
  CHART_STYLE,
  '*{box-sizing:border-box}',
  'body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}',
  'main,header,footer{max-width:1240px;margin:0 auto;padding:0 20px}',
  'header{padding-top:28px}h1{font-size:26px;line-height:1.2;margin:0 0 4px}h2{font-size:19px;margin:36px 0 12px}h3{font-size:15px;margin:0 0 2px;color:var(--ink)}',
  'p{margin:0 0 8px;max-width:72ch}.soft,figcaption,.facts dt{color:var(--soft)}',
  '.facts{display:flex;flex-wrap:wrap;gap:6px 28px;margin:14px 0 0}.facts div{min-width:0}.facts dt{font-size:12.5px}.facts dd{margin:0;overflow-wrap:anywhere}',
  '.verdict{margin:0;padding:0;list-style:none;display:grid;gap:8px}.verdict li{background:var(--ground);border:1px solid var(--line);border-radius:8px;padding:10px 14px;max-width:none}',
  '.grid-of-charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr));gap:16px}',
  'figure{margin:0;background:var(--ground);border:1px solid var(--line);border-radius:8px;padding:14px;min-width:0;display:flex;flex-direction:column}',
  'figcaption{font-size:13px;line-height:1.4;margin-bottom:10px}.chart{display:block;width:100%;height:auto;margin-top:auto}',
  'section>h3{margin-top:20px}details{margin-top:8px;font-size:13px}summary{cursor:pointer;color:var(--soft)}summary:focus-visible{outline:2px solid var(--c0);outline-offset:2px}',
  '.scroll{overflow-x:auto;background:var(--ground);border:1px solid var(--line);border-radius:8px;margin-bottom:16px}details .scroll{max-height:260px;overflow:auto;margin:6px 0 0}',
  'table{border-collapse:collapse;font-size:13.5px;width:100%;font-variant-numeric:tabular-nums}',
  'th,td{padding:6px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}tbody tr:last-child>*{border-bottom:0}',
  'thead th{color:var(--soft);font-weight:500;vertical-align:bottom}th[scope=row]{text-align:left;font-weight:500}th:first-child{text-align:left}',
  'details th[scope=row]{font-weight:400}td small{color:var(--soft);font-size:12px}.control th,.control td{color:var(--soft)}.clear{font-weight:650}',
  '.letter{display:inline-block;min-width:1.4em;color:var(--soft)}code{font-size:13px;overflow-wrap:anywhere}footer{padding-top:24px;padding-bottom:40px}',
  '@media(max-width:560px){body{font-size:14.5px}main,header,footer{padding-left:14px;padding-right:14px}h1{font-size:22px}figure{padding:12px}th,td{padding:6px 8px}',
  '.scroll>table>tbody>tr>th[scope=row],.scroll>table>thead>tr>th:first-child{position:sticky;left:0;background:var(--ground);white-space:normal;min-width:110px}}',
  '@media print{body{background:#fff}figure,.scroll{break-inside:avoid}}',
].join('');
