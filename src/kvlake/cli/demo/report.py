"""The report as a page: figures -> one HTML file that needs nothing else, for a screen, a phone and paper."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from kvlake.base.units import format_bytes, format_seconds
from kvlake.cli.demo.charts import bytes_by_tier, first_tokens

if TYPE_CHECKING:
    from kvlake.cli.demo.results import Report

_CSS = """
:root{color-scheme:light dark;--paper:#fff;--panel:#f4f6f8;--ink:#1c2630;--faint:#c9d1d9;--soft:#5b6875;
--cold:#c2483d;--memory:#0f8a7e;--disk:#2f6fbf;--device:#8a5fc0}
@media(prefers-color-scheme:dark){:root{--paper:#11161b;--panel:#1a2128;--ink:#e4e9ee;--faint:#3a4550;--soft:#9aa7b3;
--cold:#f0786b;--memory:#3fc7b6;--disk:#6cabf5;--device:#b794f0}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:44rem;margin:0 auto;padding:2rem 1rem 3rem}
h1{font-size:1.65rem;line-height:1.2;margin:0 0 .5rem}h2{font-size:1.15rem;margin:2.2rem 0 .4rem}
p{margin:.5rem 0}.soft{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:.6rem;margin:1.2rem 0}
.tiles div{background:var(--panel);border-radius:.5rem;padding:.7rem .8rem;font-size:.85rem;color:var(--soft)}
.tiles b{display:block;font-size:1.45rem;line-height:1.25;color:var(--ink)}
.tiles .bad b{color:var(--cold)}
code{white-space:nowrap}
svg{display:block;width:100%;height:auto;margin:.6rem 0;font-family:inherit}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .5rem;text-align:right;border-bottom:1px solid var(--faint);white-space:nowrap}
th{font-weight:600;color:var(--soft)}th:first-child,td:first-child{text-align:left}
td i{font-style:normal;color:var(--soft);display:inline-block;min-width:2.9em}
li{margin:.25rem 0}
@media print{body{font-size:11pt}main{max-width:none;padding:0}
h2,svg,.tiles,tr{break-inside:avoid}h2{break-after:avoid}}
"""

# No script, no font, no picture from elsewhere: the page is to be read in ten years and on a machine without a network.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>kvlake demo</title>
<style>{css}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def render(report: "Report") -> str:
    """The page."""
    parts = [_head(report), _tiles(report), _times(report), _tiers(report), _course(report), _limits(), _ground(report)]
    return _PAGE.format(css=_CSS, body="\n".join(parts))


def _head(report: "Report") -> str:
    model, settings = report["model"], report["settings"]
    need = max(report["timeline"]["disk_bytes"])
    return (
        f"<h1>{settings['sessions']} sessions in {format_bytes(settings['memory_bytes'])} of memory</h1>"
        f"<p>{escape(model['name'])} ({model['parameters'] / 1e6:.0f} M parameters, {escape(model['dtype'])}, on "
        f"{report['machine']['threads']} CPU threads) read one text per session, together {format_bytes(need)} of keys "
        "and values. Then its process was killed with <code>kill -9</code>, and in a new process every session went on "
        "from the disk, in random order.</p>"
    )


def _tiles(report: "Report") -> str:
    near, idle, sessions = report["medians"]["near_2000"], report["idle"], report["sessions"]
    # A short demo has no session near 2,000 tokens; then all of them stand for it.
    medians = near or report["medians"]["all"]
    where = f"at about {round(medians['tokens'], -2):,.0f} tokens"
    equal, kept = (sum(each[what] for each in sessions) for what in ("tokens_equal", "blocks_kept"))
    resting = idle["memory_bytes"] + idle["device_bytes"]
    disk, memory = medians["disk_speedup"], medians["memory_speedup"]
    tiles = [
        (f"{disk:.1f}×", f"sooner from disk than computed anew, {where}", disk >= 1),
        (f"{memory:.1f}×", f"sooner from memory, {where}", memory >= 1),
        (f"{equal} of {len(sessions)}", "answers equal to the last token, all three ways", equal == len(sessions)),
        (f"{kept} of {len(sessions)}", "sessions with every block there after kill&nbsp;-9", kept == len(sessions)),
        (format_bytes(resting), "of memory and device held by sessions at rest", not resting),
        (f"{report['hit_rate']:.0%}", "of all prompt tokens did not have to be computed", True),
    ]
    boxes = (f"<div{'' if good else ' class=bad'}><b>{value}</b>{text}</div>" for value, text, good in tiles)
    return f'<div class="tiles">{"".join(boxes)}</div>'


def _times(report: "Report") -> str:
    header = ("session", "tokens", "anew", "from memory", "from disk", "computed", "equal")
    rows = [
        (
            escape(each["id"]), f"{each['tokens']:,}", f"{each['cold_s']:.2f} s",
            *(f"{each[way]:.2f} s <i>{each['cold_s'] / each[way]:.1f}×</i>" for way in ("memory_s", "disk_s")),
            f"{each['computed_tokens']:,}", "yes" if each["tokens_equal"] else "NO",
        )
        for each in sorted(report["sessions"], key=lambda each: each["tokens"])
    ]  # fmt: skip
    partly = report["partly_in_memory"]
    note = f"<p>{partly} of them did not fit into memory whole when measured from there.</p>" if partly else ""
    return (
        "<h2>Time to the first token of a returning session</h2>"
        '<p class="soft">The same prompt three times, greedy. The time runs from the request to the first token and '
        "holds all of it: looking up, loading, computing the rest, whose tokens the table counts as computed.</p>"
        f'{first_tokens(report)}<div class="scroll">{_table(header, rows)}</div>{note}'
    )


def _tiers(report: "Report") -> str:
    header = ("tier", "capacity", "at the busiest", "at rest", "at the end")
    busiest, end, idle = report["tiers"]["busiest"], report["tiers"]["end"], report["idle"]
    rows = []
    for tier in ("device", "memory", "disk"):
        # The device has no capacity of its own here: it holds the cache of the session that was last in use.
        capacity = busiest[tier].get("capacity_bytes")
        held = (busiest[tier]["used_bytes"], idle[f"{tier}_bytes"], end[tier]["used_bytes"])
        rows.append((tier, format_bytes(capacity) if capacity else "one session", *map(format_bytes, held)))
    process = [format_bytes(idle[f"rss_{when}_bytes"]) for when in ("before", "active", "idle")]
    return (
        "<h2>Where the bytes were</h2>"
        '<p class="soft">What is in memory is on disk too: a kill loses nothing that was made durable. On this machine '
        "the device is the CPU, so its tier lies in the process as well.</p>"
        f'{bytes_by_tier(report)}<div class="scroll">{_table(header, rows)}</div>'
        f"<p>The whole process, model included: {process[0]} before the first session, {process[1]} with the sessions "
        f"in use, {process[2]} with all of them at rest.</p>"
    )


def _course(report: "Report") -> str:
    restart = report["restart"]
    steps = (
        "Turn 1: each session reads its text, a part of the Python language reference, and answers a question. All "
        "share one system prompt, whose blocks are computed and held once.",
        "Turn 2: each session is asked one thing more, in turn, so that most have left memory by then.",
        "Turn 3, measured: the prompt is computed from nothing by <code>model.generate</code>, then once more with its "
        "blocks in memory, neither leaving a trace in the store.",
        "All sessions go idle: memory and device are empty, the disk has every block.",
        f"<code>kill -9</code> (exit code {restart['exit_code']}). A new process loads the model and opens the store "
        f"({format_seconds(restart['away_s'])} after the kill), and turn 3 is asked from disk.",
    )
    return f"<h2>What was done</h2><ol>{''.join(f'<li>{step}</li>' for step in steps)}</ol>"


def _limits() -> str:
    points = (
        "A small model on a CPU: prefill is slow here, so saving it counts for more than on a GPU; a larger model on a "
        "GPU has more bytes to load for each token, and another ratio. Measure yours.",
        "One run, one request at a time; the bars are single measurements. What else ran on the machine is in them: "
        "see the load average below, of which the demo itself makes about one for each core.",
        "The shared system prompt is asked for again and again and so returns to memory: from the third return on its "
        "few blocks are read from there.",
        "Tokens are equal because the same sums are done on the same processor. Batches, other kernels or half "
        "precision can differ in the last bit, with or without a cache.",
    )
    return f"<h2>What this does not show</h2><ul>{''.join(f'<li>{point}</li>' for point in points)}</ul>"


def _ground(report: "Report") -> str:
    machine = report["machine"]
    facts = (
        f"{machine['processor']}, {machine['cores']} cores, load average {machine['load_average']:.1f}, "
        f"{format_bytes(machine['memory_bytes'])} of memory, {machine['kernel']}, {machine['file_system']} read and "
        f"written by {machine['io_mode']}"
    )
    software = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return (
        "<h2>Measured on</h2>"
        f"<p>{escape(facts)}. {escape(software)}. {escape(report['began'])}, {format_seconds(report['took_s'])} in "
        "all. All figures are in <code>report.json</code> beside this page.</p>"
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Cells are HTML already."""
    head = "".join(f"<th>{name}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
