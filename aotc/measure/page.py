"""A profile as one page of HTML that needs nothing beside it: the graph of steps, coloured by time, with a table in the same rows.

Steps are rows in the order in which they run. What goes to the very next step is a straight line; a longer way (a residual connection)
has a lane of its own to the left, so the graph stays readable however long it is, and no layout program is needed.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass

from aotc.measure.profile import Profile, StepCost
from aotc.measure.trace import step_arguments
from aotc.measure.traffic import Edge, edges

ROW, LANE, BOX = 24, 11, 14  # pixels
HEADINGS = ("#", "step", "operators", "ms", "share", "", "GFLOP/s", "of peak", "MB", "GB/s")


@dataclass(frozen=True)
class Row:
    """A line of the page: an input (``step`` None) or a step."""

    key: int  # -1 - number of an input, or the number of a step
    title: str
    step: StepCost | None


def page(profile: Profile) -> str:
    """The page's text. It loads nothing from any network."""
    rows = [Row(-1 - number, f"input {spec.name}", None) for number, spec in enumerate(profile.entry.inputs)]
    rows += [Row(step.number, step.name, step) for step in profile.steps]
    places = {row.key: index for index, row in enumerate(rows)}
    ways = [edge for edge in edges(profile.entry) if edge.source in places]
    lanes = assign_lanes([(places[edge.source], places[edge.target]) for edge in ways])
    left = LANE * (2 + max(lanes, default=0))
    details = [_details(profile, row, ways) for row in rows]
    share = f" ({100 * profile.flops / profile.steps_ns * 1e9 / profile.peak:.0f} % of the measured peak)" if profile.peak else ""
    summary = (
        f"{profile.runs} runs with {profile.threads} thread{'s' * (profile.threads > 1)} on {profile.machine}: {profile.run_ns / 1e6:.3f} ms a run, "
        f"{profile.flops / 1e9:.3f} GFLOP at {profile.flops / profile.steps_ns:.1f} GFLOP/s{share}. "
        "Red steps take most of the time. Click a row for what is known of it, and again to close; type to show only names that match."
    )
    return TEMPLATE.format(
        title=html.escape(f"{profile.file}, {profile.entry_point}"),
        summary=html.escape(summary),
        groups=_groups(profile),
        width=left + BOX,
        height=ROW * (len(rows) + 1),
        row=ROW,
        left=left + BOX + 8,
        lines="\n".join(_line(places[edge.source], places[edge.target], lane, left) for edge, lane in zip(ways, lanes)),
        boxes="\n".join(_box(profile, row, index, left) for index, row in enumerate(rows)),
        headings="".join(f"<th>{heading}</th>" for heading in HEADINGS),
        rows="\n".join(_table_row(profile, row, index) for index, row in enumerate(rows)),
        details=json.dumps(details).replace("</", "<\\/"),
    )


def assign_lanes(ways: Sequence[tuple[int, int]]) -> list[int]:
    """A lane for each way between rows (from, to), so that ways in one lane do not overlap; 0, the column of boxes, where a way goes to
    the next row. Shorter ways get the inner lanes. What starts at one row shares a lane: it is one tensor mostly."""
    taken: dict[int, list[tuple[int, int, int]]] = {}
    found = [0] * len(ways)
    for number in sorted(range(len(ways)), key=lambda number: abs(ways[number][1] - ways[number][0])):
        source, target = ways[number]
        first, last = min(source, target), max(source, target)
        if target == source + 1:
            continue
        lane = 1
        while any(begin < last and first < end and origin != source for begin, end, origin in taken.get(lane, ())):
            lane += 1
        taken.setdefault(lane, []).append((first, last, source))
        found[number] = lane
    return found


def _line(source: int, target: int, lane: int, left: int) -> str:
    x, top, bottom = left + BOX / 2, (source + 1.5) * ROW, (target + 1.5) * ROW
    if lane == 0:
        return f'<path d="M{x:g} {top:g}V{bottom:g}"/>'
    aside, bend = left - LANE * lane + LANE / 2, (ROW / 2) * (1 if target > source else -1)
    return f'<path d="M{x:g} {top:g}Q{aside:g} {top:g} {aside:g} {top + bend:g}V{bottom - bend:g}Q{aside:g} {bottom:g} {x:g} {bottom:g}"/>'


def _box(profile: Profile, row: Row, index: int, left: int) -> str:
    y = (index + 1.5) * ROW - BOX / 2
    fill = "#e6f4e6" if row.step is None else colour(profile.share(row.step) / _largest(profile))
    return f'<rect x="{left}" y="{y:g}" width="{BOX}" height="{BOX}" rx="3" fill="{fill}"><title>{html.escape(row.title)}</title></rect>'


def _largest(profile: Profile) -> float:
    return max((profile.share(step) for step in profile.steps), default=0.0) or 1.0


def colour(part: float) -> str:
    """From pale yellow at 0 to dark red at 1, through orange."""
    stops = ((255, 250, 225), (253, 190, 100), (235, 85, 50), (150, 0, 30))
    at = min(max(part, 0.0), 1.0) * (len(stops) - 1)
    first = min(int(at), len(stops) - 2)
    mixed = (round(a + (b - a) * (at - first)) for a, b in zip(stops[first], stops[first + 1]))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _table_row(profile: Profile, row: Row, index: int) -> str:
    step = row.step
    if step is None:
        cells = ["", html.escape(row.title), *[""] * (len(HEADINGS) - 2)]
    else:
        share, of_peak, rate = profile.share(step), profile.of_peak(step), step.bytes_per_second
        bar = f'<i style="width:{90 * share / _largest(profile):.1f}px;background:{colour(share / _largest(profile))}"></i>'
        cells = [
            str(step.number), html.escape(step.name or step.kind), html.escape(step.operators or step.kind), f"{step.ns / 1e6:.3f}",
            f"{100 * share:.1f} %", bar, f"{step.flops_per_second / 1e9:.1f}" if step.flops else "",
            "" if of_peak is None else f"{100 * of_peak:.0f} %", "" if step.bytes is None else f"{step.bytes / 1e6:.2f}",
            "" if rate is None else f"{rate / 1e9:.1f}",
        ]  # fmt: skip
    return f'<tr data-row="{index}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _details(profile: Profile, row: Row, ways: Sequence[Edge]) -> list[list[str]]:
    """(what, value) pairs of a row."""
    from_others = [
        f"{edge.value.dtype}[{', '.join(map(str, edge.value.shape))}] from {_title(profile, edge.source)}"
        for edge in ways
        if edge.target == row.key
    ]
    to_others = [_title(profile, edge.target) for edge in ways if edge.source == row.key]
    facts = [] if row.step is None else [[name, str(value)] for name, value in step_arguments(profile, row.step).items() if value != ""]
    return [["name", row.title], *facts, ["reads", "\n".join(from_others)], ["read by", "\n".join(to_others)]]


def _title(profile: Profile, key: int) -> str:
    if key < 0:
        return f"input {profile.entry.inputs[-1 - key].name}"
    return f"{key}: {profile.steps[key].name or profile.steps[key].kind}"


def _groups(profile: Profile) -> str:
    """The times of equal operators together, largest first."""
    times: dict[str, float] = {}
    for step in profile.steps:
        times[step.operators or step.kind] = times.get(step.operators or step.kind, 0.0) + profile.share(step)
    ordered = sorted(times.items(), key=lambda item: -item[1])[:12]
    return "".join(
        f'<div><i style="width:{300 * share:.0f}px;background:{colour(share)}"></i>{100 * share:.1f} % {html.escape(label)}</div>'
        for label, share in ordered
        if share >= 0.001
    )


TEMPLATE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 13px/1.4 system-ui, sans-serif; margin: 16px; color: #222; background: #fff; }}
h1 {{ font-size: 17px; margin: 0 0 6px; }}
#groups {{ margin: 10px 0; }} #groups i, td i {{ display: inline-block; height: 11px; margin-right: 6px; border-radius: 2px; outline: 1px solid #0001; }}
#filter {{ font: inherit; width: 260px; padding: 2px 6px; }}
#graph {{ position: relative; margin-top: 8px; }}
svg {{ position: absolute; left: 0; top: 0; }} svg path {{ fill: none; stroke: #8899aa; stroke-width: 1.3; }} svg rect {{ stroke: #555; stroke-width: .7; }}
table {{ margin-left: {left}px; border-collapse: collapse; }}
tr {{ height: {row}px; }} th, td {{ height: {row}px; padding: 0 7px; white-space: nowrap; text-align: right; box-sizing: border-box; line-height: 1; }}
td:nth-child(2), td:nth-child(3), td:nth-child(6), th:nth-child(2), th:nth-child(3) {{ text-align: left; max-width: 460px; overflow: hidden; text-overflow: ellipsis; }}
tbody tr:hover, tr.chosen {{ background: #eef3fa; cursor: pointer; }} tr.dim {{ opacity: .25; }}
#details {{ position: fixed; right: 12px; top: 12px; max-width: 460px; max-height: 90vh; overflow: auto; background: #fff; border: 1px solid #99a; border-radius: 6px;
  padding: 8px 12px; box-shadow: 0 2px 10px #0003; display: none; white-space: pre-wrap; overflow-wrap: anywhere; }}
#details b {{ color: #567; font-weight: 600; }}
</style></head><body>
<h1>{title}</h1><p>{summary}</p><div id="groups">{groups}</div>
<input id="filter" type="search" placeholder="name or operator">
<div id="graph"><svg width="{width}" height="{height}">
{lines}
{boxes}
</svg><table><thead><tr>{headings}</tr></thead><tbody>
{rows}
</tbody></table></div><div id="details"></div>
<script>
const details = {details}, panel = document.getElementById("details"), rows = [...document.querySelectorAll("tbody tr")];
let chosen = null;
function show(row) {{
  if (chosen) chosen.classList.remove("chosen");
  chosen = chosen === row ? null : row;
  panel.style.display = chosen ? "block" : "none";
  if (!chosen) return;
  chosen.classList.add("chosen");
  panel.replaceChildren();
  for (const [name, value] of details[row.dataset.row]) {{
    if (!value) continue;
    const label = document.createElement("b");
    label.textContent = name + "  ";
    panel.append(label, value + "\\n");
  }}
}}
rows.forEach(row => row.addEventListener("click", () => show(row)));
document.getElementById("filter").addEventListener("input", event => {{
  const text = event.target.value.toLowerCase();
  rows.forEach(row => row.classList.toggle("dim", !row.textContent.toLowerCase().includes(text)));
}});
</script></body></html>
"""
