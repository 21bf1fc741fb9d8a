"""The page: one HTML file that needs nothing else, with tables to sort and to filter."""

import base64
import csv
import gzip
import html
import io

from train.study.advice import RULES, Advice
from train.study.results import COLUMNS, text
from train.study.summary import Summary
from train.study.tables import LONG, TITLES, facts, long_cells, wide

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:90rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}
table{border-collapse:collapse;font-size:13px;margin:.5rem 0 2rem}th,td{padding:.2rem .6rem;border-bottom:1px solid #ddd;
text-align:left;white-space:nowrap}th{cursor:pointer;position:sticky;top:0;background:#f4f4f4}
th[data-up]::after{content:" \\25B4"}
th[data-down]::after{content:" \\25BE"}input{font:inherit;padding:.2rem .5rem;width:26rem;max-width:100%}img{max-width:100%}
dt{font-weight:600}.scroll{overflow-x:auto}.quiet{color:#555}"""

SCRIPT = """for (const table of document.querySelectorAll('table')) {
  const body = table.tBodies[0];
  table.querySelectorAll('th').forEach((head, column) => head.addEventListener('click', () => {
    const down = !head.hasAttribute('data-down');
    table.querySelectorAll('th').forEach(h => { h.removeAttribute('data-up'); h.removeAttribute('data-down'); });
    head.setAttribute(down ? 'data-down' : 'data-up', '');
    const key = row => { const t = row.cells[column].textContent, n = parseFloat(t); return isNaN(n) ? t : n; };
    const order = (a, b) => {
      const x = key(a), y = key(b);
      if (typeof x !== typeof y) return typeof x === 'number' ? -1 : 1;
      const result = typeof x === 'number' ? x - y : x.localeCompare(y);
      return down ? -result : result;
    };
    [...body.rows].sort(order).forEach(row => body.append(row));
  }));
  const box = table.closest('section').querySelector('input');
  if (box) box.addEventListener('input', () => {
    const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean);
    for (const row of body.rows) {
      const cells = [...row.cells].map(cell => cell.textContent.toLowerCase());
      row.hidden = !words.every(word => cells.some(cell => cell.includes(word)));
    }
  });
}"""


def page(summary: Summary, advice: list[Advice], pictures: dict[str, bytes], *, title: str, command: str) -> str:
    """The whole file.

    Args:
        summary: What the results say.
        advice: The recommendations.
        pictures: Description -> PNG.
        title: Head of the page.
        command: What was run.
    """
    parts = [f"<h1>{html.escape(title)}</h1>", "<ul>", *(f"<li>{html.escape(fact)}</li>" for fact in facts(summary))]
    parts += [f"<li>Command: <code>{html.escape(command)}</code></li></ul>", "<h2>Recommendations</h2><dl>"]
    parts += [f"<dt>{html.escape(a.purpose)}</dt><dd>{html.escape(a.text)}</dd>" for a in advice]
    parts.append(f'</dl><p class="quiet">{html.escape(RULES)}</p>')
    for name, image in pictures.items():
        source = base64.b64encode(image).decode()
        parts.append(f'<h2>{html.escape(name)}</h2><img alt="{html.escape(name)}" src="data:image/png;base64,{source}">')
    for protocol, head in TITLES.items():
        if summary.select(protocol):
            heads, lines = wide(summary, protocol)
            parts.append(section(f"{head}: top-1 accuracy (%), mean ± standard deviation", heads, [c for _, c in lines]))
    lines = [long_cells(line) for line in summary.lines()]
    parts.append(section(f"Every line; baseline: {summary.baseline} as it is by itself, same seeds", LONG, lines))
    link = f'<a download="results.csv.gz" href="{archive(summary)}">Every row of the results file</a>'
    parts.append(f"<p>{link} (CSV, gzip).</p>")
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n<script>{SCRIPT}</script>\n</body></html>\n"
    )


def section(title: str, heads: list[str], lines: list[list[str]]) -> str:
    """A table under its title with a box to filter it. A star marks what a model does by itself."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return (
        f"<section><h2>{html.escape(title)}</h2>\n"
        '<input type="search" placeholder="filter: words that a line must have, e.g. rope rescale 64x64">\n'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div></section>'
    )


def archive(summary: Summary) -> str:
    """All rows as a data address."""
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows([COLUMNS, *map(text, summary.rows)])
    packed = gzip.compress(buffer.getvalue().encode(), mtime=0)
    return "data:application/gzip;base64," + base64.b64encode(packed).decode()
