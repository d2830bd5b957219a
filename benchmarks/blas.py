"""float32 matrix products of MLX on a Linux CPU, with each BLAS that can serve it.

    python benchmarks/blas.py [--json FILE]

Each BLAS runs in its own process, for a library is loaded once. Ratios are against the reference
BLAS in the same session.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

ROWS = (1, 2, 4, 8, 16, 64, 256, 512)
INNER, OUTER = 576, 1536
SETTINGS = {
    "reference": {"MIRROR_SD_BLAS": "off"},
    "MKL, free": {"MKL_CBWR": "OFF"},
    "MKL, reproducible": {"MKL_CBWR": "AUTO,STRICT"},
}
CHILD = """
import json, statistics, time
import mirror_sd
from mirror_sd import blas
import mlx.core as mx
rows, inner, outer = json.loads(input())
weight = mx.random.normal((outer, inner))
times = {}
for n in rows:
    a = mx.random.normal((n, inner))
    mx.eval(a, weight)
    took = []
    for i in range(14):
        start = time.perf_counter()
        mx.eval(a @ weight.T)
        took.append(time.perf_counter() - start)
    times[n] = statistics.median(took[4:])
print(json.dumps({"blas": str(blas.activate()), "seconds": times}))
"""


def measure(settings: dict[str, str]) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps([ROWS, INNER, OUTER]),
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="also write the figures to this file")
    arguments = parser.parse_args()
    results = {name: measure(settings) for name, settings in SETTINGS.items()}
    for name, result in results.items():
        print(f"{name}: {result['blas']}")
    print(f"\nGFLOP/s of [rows, {INNER}] x [{INNER}, {OUTER}], and times faster than reference\n")
    print("| rows | " + " | ".join(results) + " |")
    print("|---|" + "---|" * len(results))
    for rows in ROWS:
        cells = []
        for result in results.values():
            seconds = result["seconds"][str(rows)]
            ratio = results["reference"]["seconds"][str(rows)] / seconds
            cells.append(f"{2 * rows * INNER * OUTER / seconds / 1e9:.1f} ({ratio:.0f}x)")
        print(f"| {rows} | " + " | ".join(cells) + " |")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
