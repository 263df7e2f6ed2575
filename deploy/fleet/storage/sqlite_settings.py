"""SQLite settings of the SuperLink's database, with which a round writes much less to the disk.

A round writes each client's model into the database and deletes it again. SQLite first writes changed pages
into a log (WAL). After every 4 MB of the log, it copies these pages into the database's file, and waits for
the disk twice. Here it copies after `LOG` bytes, so pages that were deleted in the meantime are not copied.
As in stock Flower, a crash of the machine may lose the last transactions, but never damages the file.

Debian's SQLite overwrites deleted content with zeros, which writes each model twice. With secure_delete =
FAST, it does so only in pages that it writes anyway. The content that stays in the file is no secret from
those who can read the file: they could also have read it before it was deleted.
"""

from __future__ import annotations

import importlib

from deploy.flower.patches.shared import replace

LOG = 64 * 1024 * 1024  # bytes of the log after which SQLite copies changed pages into the file
_PAGE = 4096  # bytes of a page of the database

_MIXIN = "flwr.supercore.sql_mixin"


def patch() -> None:
    """Let the SuperLink open its database with these settings."""
    pragmas = importlib.import_module(_MIXIN).SQLITE_PRAGMAS
    own = (("wal_autocheckpoint", str(LOG // _PAGE)), ("secure_delete", "FAST"))
    replace(_MIXIN, SQLITE_PRAGMAS=(*pragmas, *own))
