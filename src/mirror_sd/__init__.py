"""mirror-sd: lossless block-diffusion speculative decoding (DFlash) on MLX.

The public API is shaped like mlx_lm's:

    from mirror_sd import load, stream_generate
    model, tokenizer = load("mlx-community/Qwen3-8B-4bit")
    for response in stream_generate(model, tokenizer, "Why is the sky blue?"):
        print(response.text, end="", flush=True)
"""

from typing import TYPE_CHECKING, Any

from . import blas

__version__ = "0.1.0"
__all__ = [
    "GenerationResponse",
    "SamplingSettings",
    "__version__",
    "generate",
    "load",
    "make_session",
    "stream_generate",
]

blas.activate()  # before anything imports mlx

if TYPE_CHECKING:
    from .api import (
        GenerationResponse,
        SamplingSettings,
        generate,
        load,
        make_session,
        stream_generate,
    )


def __getattr__(name: str) -> Any:
    # mlx_lm takes seconds to import; `mirror-sd --help` should not.
    if name in __all__:
        from . import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
