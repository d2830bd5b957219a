"""coremltools, imported quietly: off a Mac it warns of what only a Mac has."""

from __future__ import annotations

import contextlib
import io
import logging

logging.getLogger("coremltools").setLevel(logging.ERROR)
with contextlib.redirect_stderr(io.StringIO()):
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil import mil
    from coremltools.converters.mil.mil import types
    from coremltools.proto import Model_pb2

__all__ = ["Model_pb2", "ct", "mb", "mil", "types"]
