"""The `mirror-sd` command."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..errors import MirrorError
from . import view
from .ane import app as ane
from .bench import bench
from .chat import chat
from .compile import compile_
from .doctor import doctor
from .evaluate import evaluate
from .generate import generate
from .models import models
from .timeline import timeline
from .trace import trace
from .train import train
from .verify import verify


class _Commands(TyperGroup):
    """Turns errors a user can act on into one line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except MirrorError as error:
            view.show_error(error)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Faster answers from local language models, without changing a token.",
)
app.command()(generate)
app.command()(chat)
app.command()(verify)
app.command()(trace)
app.command()(timeline)
app.command()(train)
app.command()(evaluate)
app.command()(bench)
app.command("compile")(compile_)
app.add_typer(ane, name="ane")
app.command()(models)
app.command()(doctor)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mirror-sd {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    view.show_notices()


def main() -> None:
    """Entry point."""
    app()
