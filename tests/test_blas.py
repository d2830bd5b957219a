"""Which BLAS serves MLX. Each case needs its own process, for a library is loaded once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the choice")
has_mkl = pytest.mark.skipif(
    not any(name.startswith("libmkl_rt") for name in os.listdir(os.path.join(sys.prefix, "lib"))),
    reason="the extra `blas` is not installed",
)
PRODUCT = """
import mlx.core as mx
mx.eval(mx.ones((64, 48)) @ mx.ones((48, 80)))
"""


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
    )


STATUS = "from mirror_sd import blas; print(blas.activate())"


@has_mkl
def test_products_of_mlx_really_run_in_mkl():
    done = run("import mirror_sd" + PRODUCT, MKL_VERBOSE="1")
    assert "SGEMM(" in done.stdout
    assert "CNR:AUTO,STRICT" in done.stdout


@has_mkl
def test_it_can_be_switched_off():
    done = run("import mirror_sd" + PRODUCT + STATUS, MKL_VERBOSE="1", MIRROR_SD_BLAS="off")
    assert "SGEMM(" not in done.stdout
    assert done.stdout.strip() == "reference (MIRROR_SD_BLAS=off)"


@has_mkl
def test_the_library_in_use_is_named():
    assert run(STATUS).stdout.startswith("MKL (")


@has_mkl
def test_a_users_own_setting_of_mkl_is_kept():
    done = run("import mirror_sd" + PRODUCT, MKL_VERBOSE="1", MKL_CBWR="COMPATIBLE")
    assert "CNR:COMPATIBLE" in done.stdout


@pytest.mark.parametrize("path", ["/nowhere/libblas.so", "libm.so.6"])
def test_a_library_that_does_not_serve_is_a_notice(path):
    done = run(STATUS, MIRROR_SD_BLAS=path)
    assert done.stdout.startswith(f"reference (MIRROR_SD_BLAS={path} cannot be loaded")
    assert "Notice: BLAS stays the reference one" in done.stderr


@has_mkl
def test_mlx_imported_too_early_is_a_notice():
    done = run("import mlx.core\n" + STATUS)
    assert "mlx was imported before mirror_sd" in done.stdout
    assert "import mirror_sd first" in done.stderr
