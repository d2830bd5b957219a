"""Compiling drafts of published shapes, with random weights: seconds, bytes, memory, and agreement.

    python benchmarks/compile.py [--shapes NAME ...] [--weights int8] [--cycles 2] [--folder DIR]

Each draft is compiled in a process of its own, whose peak memory is read off, less that of an
empty one. Then every saved program runs in the emulator, and the hidden states are compared with
an fp64 reference in numpy.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from mirror_sd.ane import plan as plans
from mirror_sd.ane import reader
from mirror_sd.ane.emulator import Emulator, cosine
from mirror_sd.ane.host import HostedDraft
from mirror_sd.ane.package import compile_draft
from mirror_sd.ane.reference import ReferenceDraft, masks
from mirror_sd.ane.shapes import Bucket, DraftShape
from mirror_sd.bench.random_draft import RandomTensors, tables
from mirror_sd.devices.device import Inline

BUCKET = Bucket(32, 32, 512)


def shape(hidden, heads, kv, head_dim, inner, layers, bias=False, sliding=0) -> DraftShape:
    kinds = (True,) * sliding + (False,) * (layers - sliding)
    return DraftShape(
        hidden, 5, heads, kv, head_dim, inner, 1e-6, bias, kinds, kinds,
        2048 if sliding else None,
    )  # fmt: skip


SHAPES = {
    "Qwen3-8B": shape(4096, 32, 8, 128, 12288, 5),
    "Qwen3.5-27B": shape(5120, 32, 8, 128, 17408, 5),
    "gpt-oss-20b": shape(2880, 64, 8, 64, 2880, 8, bias=True, sliding=4),
}


def build(name: str, scheme: str, folder: str, answer) -> None:
    """Compile; runs in a process of its own."""
    from mirror_sd.ane import toolkit  # noqa: F401  its memory is not the draft's

    before = peak_memory()
    start = time.perf_counter()
    compile_draft(Path(folder), SHAPES[name], RandomTensors(SHAPES[name]), [BUCKET], scheme)
    took = time.perf_counter() - start
    answer.put((took, peak_memory() - before))


def peak_memory() -> int:
    """Of this process, in bytes. Linux's getrusage would give its starter's peak as well."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def agreement(folder: Path, cycles: int) -> float:
    """The worst cosine of a cycle's hidden states."""
    plan = plans.read(folder)
    emulators = [
        Emulator(reader.read(plan.package(folder, index))[BUCKET.function])
        for index in range(len(plan.parts))
    ]
    places, tensors = tables(plan.shape), RandomTensors(plan.shape)
    draft = HostedDraft(
        plan.shape, BUCKET, plan.parts, plan.calibration, places,
        Inline(lambda part, arrays: emulators[part](arrays)),
    )  # fmt: skip
    reference, rng, worst = ReferenceDraft(plan.shape, tensors), np.random.default_rng(0), 1.0
    for cycle in range(cycles):
        print(f"emulating {cycle + 1}/{cycles}    ", end="\r", file=sys.stderr)
        features = rng.standard_normal((8, plan.shape.taps * plan.shape.hidden))
        block = rng.standard_normal((16, plan.shape.hidden))
        start = reference.keys[0].shape[1]
        reference.extend(features, *places(np.arange(start, start + 8)))
        rows = np.arange(start + 8, start + 24)
        wanted = reference(block, *places(rows), masks(plan.shape, start + 8, 16)).hidden
        worst = min(worst, cosine(draft(features, block), wanted))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    settings = parser.parse_args()
    print("| draft | parameters | programs | package | bytes per parameter | built in |", end="")
    print(" peak memory over package | worst cosine |\n|---|---|---|---|---|---|---|---|")
    processes = multiprocessing.get_context("spawn")
    for name in settings.shapes:
        folder = settings.folder / f"compiled-{name}"
        answer = processes.Queue()
        process = processes.Process(
            target=build, args=(name, settings.weights, str(folder), answer)
        )
        process.start()
        took, peak = answer.get()
        process.join()
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        count = RandomTensors(SHAPES[name]).parameters
        worst = agreement(folder, settings.cycles)
        print(
            f"| {name} | {count / 1e9:.2f} B | {len(plans.read(folder).parts)} | "
            f"{size / 1e9:.2f} GB | {size / count:.3f} | {took:.0f} s | {peak / size:.2f} | "
            f"{worst:.6f} |",
            flush=True,
        )
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
