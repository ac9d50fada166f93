"""`python -m gradsync`: what the daemon does now."""

from __future__ import annotations

import argparse
import json
import sys

from ._client import connect
from .errors import GradsyncError


def main(argv: list[str] | None = None) -> int:
    """Prints the daemon's status; 1 when none can be reached."""
    parser = argparse.ArgumentParser(prog="python -m gradsync", description="Status of a gradsyncd.")
    parser.add_argument("--address", help="path of its socket (default: $GRADSYNC_ADDRESS, then the usual places)")
    parser.add_argument("--json", action="store_true", help="the whole answer as JSON")
    options = parser.parse_args(argv)
    try:
        with connect(options.address) as client:
            status = client.status()
    except GradsyncError as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(status, indent=2))
        return 0
    print(f"gradsyncd {status['version']} pid {status['pid']}: {status['state']}, up {status['uptime_s']:.0f} s")
    for job in status["jobs"]:
        print(
            f"  {job['job']}: {job['state']} ({job['reason']}), world size {job['world_size']}, "
            f"data path {job['data_path']}, "
            f"last step {job['last_step']}, {job['steps_committed']} done, {job['steps_failed']} failed"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
