"""The command `cohort page`, and the option `--page` of other commands."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from deploy.option_types import argument, fail, optional
from deploy.page.process import PageProcess
from deploy.page.secret_link import new_token, shown_address
from deploy.runs.trials import run_folder

PORT_HELP = "Port of the page, on this machine only. (default: a free port)"

Page = Annotated[bool, typer.Option("--page", help="Show the run in the browser: an address is printed.")]
PagePort = Annotated[int | None, optional(min=1, max=65535, help=PORT_HELP)]


@contextlib.contextmanager
def page_of(folder: Path, wanted: bool, port: int | None, say: Callable[[str], None]) -> Iterator[None]:
    """Serve a page of a run that is trained inside the `with` block, if the user wants one."""
    if not wanted:
        yield
        return
    with PageProcess(folder, new_token(), port or 0, say):
        yield
    say(f"the page has ended; to open it again: cohort page {folder}")


def page(
    run: Annotated[
        str,
        argument(
            help="A history, or the folder of a run, of a trial, of several runs or of a server; last: the "
            "newest comparison in runs/."
        ),
    ],
    port: Annotated[int | None, optional(min=1, max=65535, help=PORT_HELP)] = None,
) -> None:
    """Show a run in the browser, while it goes on or afterwards, until Ctrl-C. The run is not changed."""
    from deploy.page.http_interface import page_app
    from deploy.page.http_server import listening, serve, step_back
    from deploy.page.run_sources import NothingThereError, RunSources

    try:
        sources, listener = RunSources(run_folder(run)), listening(port or 0)
    except (NothingThereError, ValueError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"port = {port}: {error.strerror}; choose another one with --port")
    token = new_token()
    where = listener.getsockname()[1]
    step_back()
    with shown_address(where, token) as shown:
        serve(
            page_app(sources, token), listener, lambda: typer.echo(f"open {shown}   (Ctrl-C ends the page)")
        )
