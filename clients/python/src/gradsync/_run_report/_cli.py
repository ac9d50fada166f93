"""`gradsync report RUN.jsonl -o report.html`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gradsync._command_parser import AddParser, add_command
from gradsync.errors import UsageError

from ._page import page, rows_of
from ._picture import drawn
from ._replay import DEFAULT_POLICIES, replay
from ._run import read_run

__all__ = ["add_report"]

_EPILOG = """\
RUN is a file of JSON lines that log_to("run.jsonl", every=1) or `gradsync observe --jsonl` wrote, or mlflow:RUN_ID, a
run that log_to("mlflow") wrote ($MLFLOW_TRACKING_URI says where).

What other policies would have done is what `gradsyncd policy replay` says of the norms as they were; only a run shows
how another clip changes the norms after it.

example: gradsync report run.jsonl -o report.html --policy percentile:percentile=90 --policy zscore
"""


def add_report(add: AddParser) -> None:
    parser = add_command(
        add,
        "report",
        _report,
        help="draw the norms, thresholds, clips and findings of a run, and what other policies would have done",
        description="Draws a run that was logged.",
        epilog=_EPILOG,
    )
    parser.add_argument("logged", metavar="RUN", help="a file of JSON lines, or mlflow:RUN_ID")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="*.html or *.png (default: report.html)")
    parser.add_argument(
        "--policy",
        action="append",
        metavar="POLICY",
        help="as for `gradsyncd policy replay`, repeated for several; none for none (default: percentile and zscore)",
    )


def _report(options: argparse.Namespace) -> int:
    output = Path("report.html") if options.output is None else options.output
    if output.suffix not in (".html", ".png"):
        raise UsageError(f"--output {output}: give a file that ends in .html or .png")
    policies = list(DEFAULT_POLICIES) if options.policy is None else [one for one in options.policy if one != "none"]
    run = read_run(options.logged)
    replayed = replay(run, policies)
    others = [] if isinstance(replayed, str) else replayed
    try:
        if output.suffix == ".png":
            output.write_bytes(drawn(run, others, "png"))
        else:
            output.write_text(page(run, replayed, drawn(run, others, "svg").decode()), "utf-8")
    except OSError as error:
        raise UsageError(f"--output {output} cannot be written: {error}") from error
    width = max(len(name) for name, _ in rows_of(run, replayed))
    for name, text in rows_of(run, replayed):
        print(f"{name:<{width}}  {text}")
    print(f"{'picture':<{width}}  {output}")
    return 0
