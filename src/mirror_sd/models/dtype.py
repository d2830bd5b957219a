"""The choices of `--dtype`, importable without MLX."""

from enum import StrEnum


class Dtype(StrEnum):
    """In which number format weights are computed with; `precision` says what each does."""

    auto = "auto"
    stored = "stored"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    quantized = "quantized"
