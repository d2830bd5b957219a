"""Give MLX on Linux a fast BLAS.

The CPU build of MLX links the reference BLAS. The dynamic linker looks a symbol up in the global
scope before a library's own dependencies, so an optimised CBLAS opened with RTLD_GLOBAL before MLX
is imported takes over `cblas_sgemm` in MLX too. docs/linux-cpu.md tells the whole story.

This module must not import mlx.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from .errors import Notice

ENV = "MIRROR_SD_BLAS"
SYSTEM_LIBRARIES = ("libopenblas.so.0", "libopenblas.so")
# Kernels chosen once per machine, not per alignment or thread count: the same input gives the same
# bits. Measured cost: none that shows (benchmarks/blas.py --reproducible).
MKL_REPRODUCIBLE = "AUTO,STRICT"


@dataclass(frozen=True)
class Blas:
    """Which BLAS serves MLX's CPU matrix products.

    `name` is "MKL", "OpenBLAS", "Accelerate", "reference" or the file name of a custom library;
    `detail` says where it came from, or why there is no faster one.
    """

    name: str
    detail: str
    path: str | None = None

    def __str__(self) -> str:
        """One line for `doctor` and reports."""
        return f"{self.name} ({self.detail})"


_active: Blas | None = None


def activate() -> Blas:
    """Load an optimised BLAS for MLX, once. Call it before mlx is imported.

    Returns:
        What serves MLX from here on. Failing to find a BLAS is no error; failing to load the one
        that `MIRROR_SD_BLAS` names is a visible notice.
    """
    global _active
    if _active is None:
        _active = _activate()
    return _active


def _activate() -> Blas:
    if sys.platform != "linux":
        return Blas("Accelerate", "part of macOS")
    wanted = os.environ.get(ENV, "")
    if wanted.lower() == "off":
        return Blas("reference", f"{ENV}=off")
    if "mlx.core" in sys.modules:
        reason = "mlx was imported before mirror_sd; import mirror_sd first for a faster BLAS"
        if wanted or any(_mkl_files()):
            warnings.warn(f"BLAS stays the reference one: {reason}", Notice, stacklevel=4)
        return Blas("reference", reason)
    if wanted:
        return _load_named(wanted)
    for candidate in (*_mkl_files(), *SYSTEM_LIBRARIES):
        blas = _load(str(candidate))
        if blas is not None:
            return blas
    return Blas("reference", "no optimised BLAS found; pip install 'mirror-sd[blas]' on x86-64")


def _load_named(path: str) -> Blas:
    blas = _load(path)
    if blas is None:
        reason = f"{ENV}={path} cannot be loaded or has no cblas_sgemm"
        warnings.warn(f"BLAS stays the reference one: {reason}", Notice, stacklevel=5)
        return Blas("reference", reason)
    return blas


def _mkl_files() -> Iterator[Path]:
    """The MKL runtime of this environment: pip's package, else the environment's lib folder."""
    try:
        for file in metadata.files("mkl") or ():
            if file.name.startswith("libmkl_rt.so"):
                yield Path(str(file.locate())).resolve()
    except metadata.PackageNotFoundError:
        yield from sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"), reverse=True)


def _load(path: str) -> Blas | None:
    is_mkl = "mkl" in Path(path).name
    if is_mkl:
        os.environ.setdefault("MKL_CBWR", MKL_REPRODUCIBLE)
        os.environ.setdefault("MKL_INTERFACE_LAYER", "LP64")  # MLX passes 32-bit sizes
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL).cblas_sgemm  # noqa: B018
    except (OSError, AttributeError):
        return None
    provider = _provider("cblas_sgemm")
    if provider is None or Path(provider).name.split(".so")[0] != Path(path).name.split(".so")[0]:
        return None  # another library in the process came first
    name = "MKL" if is_mkl else "OpenBLAS" if "openblas" in path else Path(path).name
    return Blas(name, provider, provider)


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("dli_fname", ctypes.c_char_p),
        ("dli_fbase", ctypes.c_void_p),
        ("dli_sname", ctypes.c_char_p),
        ("dli_saddr", ctypes.c_void_p),
    )


def _provider(symbol: str) -> str | None:
    """The library that a global look-up of `symbol` ends in: the one MLX will call."""
    process = ctypes.CDLL(None)
    try:
        address = ctypes.cast(getattr(process, symbol), ctypes.c_void_p)
    except AttributeError:
        return None
    info = _DlInfo()
    if not process.dladdr(address, ctypes.byref(info)) or not info.dli_fname:
        return None
    return info.dli_fname.decode()
