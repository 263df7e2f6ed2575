"""Converts times to the form in which the SuperLink's database holds them, for fixed SQL statements."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

_SESSIONS = "flwr.supercore.state.schema.corestate_models"


def stored_time(moment: datetime) -> Any:
    """Return a time in the form in which the database stores times, as in the column `expires_at`."""
    return _conversion()(moment)


@cache
def _conversion() -> Callable[[datetime], Any]:
    kind = importlib.import_module(_SESSIONS).ObjectPushSession.__table__.c.expires_at.type
    dialect = importlib.import_module("sqlalchemy.dialects.sqlite.pysqlite").dialect()
    convert: Callable[[datetime], Any] = kind.dialect_impl(dialect).bind_processor(dialect)
    return convert
