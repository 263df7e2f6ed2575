"""The role `page`: shows the runs in a browser, on a port that clients cannot reach."""

import contextlib

from deploy.container import PAGE, READY, RESULTS, STATE
from deploy.container.supervisor import say
from deploy.hosting.server import PAGE_PORT as PORT
from deploy.page.http_interface import page_app
from deploy.page.http_server import listening, serve, step_back
from deploy.page.run_sources import RunSources
from deploy.page.secret_link import kept_token

SECRET = PAGE / "secret"  # the file with the secret of the page's address


def main() -> int:
    """Serve the page until the container is stopped."""
    token = kept_token(SECRET)
    step_back()
    sources = RunSources(RESULTS, STATE / "superlink.db", wait=True)
    with contextlib.closing(listening(PORT, "0.0.0.0")) as listener:
        serve(page_app(sources, token), listener, _ready)
    return 0


def _ready() -> None:
    READY.touch()
    # The secret is not printed, since logs of containers are often collected where others read them.
    say("open http://ADDRESS/SECRET/ with what these commands print:")
    say(f"ADDRESS: docker compose port page {PORT}")
    say(f"SECRET:  docker compose exec page cat {SECRET}")
