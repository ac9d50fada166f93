"""The other process: opens a handle and says what it reads. A request and an answer per line, until its input ends.

{"handle": hex, "offset": n, "bytes": n} → {"mapped_bytes": n, "sha256": hex} or {"error": text}
{"descriptor": n, "bytes": n} → {"import_us": x, "map_us": x, "sha256": hex} or {"error": text}; its first byte is then
inverted. The descriptor is one that this process inherited.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time

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


def answer_of_descriptor(driver: Driver, request: dict[str, object]) -> dict[str, object]:
    size = int(str(request["bytes"]))
    try:
        began = time.perf_counter()
        memory = driver.import_descriptor(int(str(request["descriptor"])))
        imported = time.perf_counter()
        address = driver.map(memory, size)
        mapped = time.perf_counter()
        content = driver.read(address, size)
        driver.write(address, bytes([content[0] ^ 0xFF]))
        driver.unmap(address, memory, size)
    except DriverError as error:
        return {"error": str(error)}
    return {
        "import_us": (imported - began) * 1e6,
        "map_us": (mapped - imported) * 1e6,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def main() -> None:
    die_with_parent()
    driver = Driver()
    driver.enter_primary_context()
    for line in sys.stdin:
        request = json.loads(line)
        of_kind = answer_of_descriptor if "descriptor" in request else answer
        print(json.dumps(of_kind(driver, request)), flush=True)


if __name__ == "__main__":
    main()
