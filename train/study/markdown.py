"""The same page in Markdown, with its pictures beside it."""

from train.study.advice import RULES, Advice
from train.study.summary import Summary
from train.study.tables import LONG, TITLES, facts, long_cells, wide


def markdown(summary: Summary, advice: list[Advice], pictures: dict[str, str], *, title: str, command: str) -> str:
    """The whole file.

    Args:
        summary: What the results say.
        advice: The recommendations.
        pictures: Description -> name of the file beside this one.
        title: Head of the page.
        command: What was run.
    """
    parts = [f"# {title}", "\n".join(f"- {fact}" for fact in facts(summary)), f"    {command}", "## Recommendations"]
    parts.append("\n".join(f"- **{a.purpose}**: {a.text}" for a in advice))
    parts.append(RULES)
    parts += [f"## {name}\n\n![{name}]({file})" for name, file in pictures.items()]
    for protocol, head in TITLES.items():
        if summary.select(protocol):
            heads, lines = wide(summary, protocol)
            parts.append(f"## {head}\n\nTop-1 accuracy (%), mean ± sample standard deviation; * is what a model does itself.")
            parts.append(table(heads, [cells for _, cells in lines]))
    parts.append(f"## Every line\n\nBaseline: {summary.baseline} as it is by itself, same seeds.")
    parts.append(table(LONG, [long_cells(line) for line in summary.lines()]))
    return "\n\n".join(parts) + "\n"


def table(heads: list[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    rule = "|" + "---|" * len(heads)
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in [heads, *lines]]
    return "\n".join([rows[0], rule, *rows[1:]])
