"""How the emulated Neural Engine rounds and where it breaks.

What is modelled was reported by people who measured on silicon (sources in docs/ane.md); none of it
is documented by Apple, and none was checked by this project on a Neural Engine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hardware:
    """A model of arithmetic.

    Attributes:
        half: every operation's result is rounded to fp16.
        accumulate: contractions add up in fp16 after every so many terms; 0: in fp32.
        scale_after: int8 weights are multiplied as integers, and the result is scaled.
        int8_limit: activations beyond it become infinite before an operation with int8 weights.
        product_limit: results of convolutions and matrix products from it on become infinite.
        slice_limit: values beyond it become infinite in a slice that begins inside the last axis.
        narrow_reduce: sums and means add up in fp16.
        flush: subnormal numbers become zero.
    """

    half: bool = True
    accumulate: int = 0
    scale_after: bool = False
    int8_limit: float = 0.0
    product_limit: float = 0.0
    slice_limit: float = 0.0
    narrow_reduce: bool = False
    flush: bool = False


EXACT = Hardware(half=False)
IDEAL = Hardware()
PRESETS: dict[str, Hardware] = {
    "exact": EXACT,
    "ideal": IDEAL,
    "narrow": Hardware(accumulate=64, narrow_reduce=True, flush=True),
    "m1": Hardware(
        scale_after=True, int8_limit=4094, product_limit=32752, slice_limit=4094, narrow_reduce=True
    ),
    "m5": Hardware(int8_limit=4094, product_limit=32752, narrow_reduce=True),
}
