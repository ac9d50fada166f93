"""The other process: opens a handle and says what it reads. A request and an answer per line, until its input ends.

{"handle": hex, "offset": n, "bytes": n} → {"mapped_bytes": n, "sha256": hex} or {"error": text}
"""

from __future__ import annotations

import hashlib
import json
import sys

from cuda_driver import Driver, DriverError, die_with_parent


def answer(driver: Driver, request: dict[str, object]) -> dict[str, object]:
    try:
        base = driver.open(bytes.fromhex(str(request["handle"])))
        mapped = driver.range_of(base).bytes
        content = driver.read(base + int(str(request["offset"])), int(str(request["bytes"])))
        driver.close(base)
    except DriverError as error:
        return {"error": str(error)}
    return {"mapped_bytes": mapped, "sha256": hashlib.sha256(content).hexdigest()}


def main() -> None:
    die_with_parent()
    driver = Driver()
    driver.enter_primary_context()
    for line in sys.stdin:
        print(json.dumps(answer(driver, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
