"""The default folders of devices and servers. Uses the standard library only."""

import os
from pathlib import Path


def default_folder(name: str = "cohort-client") -> Path:
    """Return the folder NAME in /var/lib for root, else in XDG_STATE_HOME (default: ~/.local/state)."""
    if os.geteuid() == 0:
        return Path("/var/lib", name)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", name)
