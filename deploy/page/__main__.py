"""`python -m deploy.page FOLDER PORT` serves the page beside a run; see `deploy.page.process`."""

import os
import sys
from pathlib import Path

from deploy.page.http_interface import page_app
from deploy.page.http_server import end_with_parent, listening, serve, step_back
from deploy.page.run_sources import RunSources
from deploy.page.secret_link import TOKEN


def main() -> int:
    """Serve the page until the parent process ends. Return 1 if the port is taken."""
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    token = os.environ.pop(TOKEN)
    step_back()
    try:
        listener = listening(port)
    except OSError as error:
        print(f"port = {port}: {error.strerror}", file=sys.stderr)
        return 1
    end_with_parent()
    sources = RunSources(folder, wait=True)
    serve(page_app(sources, token), listener, lambda: print(listener.getsockname()[1], flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
