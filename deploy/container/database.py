"""The PostgreSQL database that the SuperLinks of a cluster share, if the environment names one.

The password is in a file, `DATABASE_PASSWORD`. It is on no command line and in no variable, where whoever may
inspect the container would see it.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deploy.container import AUTHORITY, DATABASE_PASSWORD
from deploy.fleet.storage import postgres
from deploy.flower import commands
from deploy.tls.certificates import write_private

VARIABLE = "COHORT_DATABASE"  # the environment variable with the database's address
# The front ends of a cluster have one name: an executor gets the runs that were submitted to any of them.
FRONT_END = "cluster"


def database_from_environment(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the address of the database; None if the environment names none.

    Raises ValueError if the address is not valid, or holds a password.

    `environment`: the environment variables, by name. (default: those of this process)
    """
    text = environment.get(VARIABLE, "").strip()
    try:
        return postgres.checked_url(text) if text else None
    except ValueError as error:
        raise ValueError(str(error).replace("database", VARIABLE, 1)) from None


def sharing() -> dict[str, str]:
    """Return the environment variables with which the SuperLink shares the database with others."""
    fingerprint = hashlib.sha256(AUTHORITY.read_bytes()).hexdigest()
    found = commands.shared(FRONT_END, fingerprint)
    if DATABASE_PASSWORD.exists():  # else the address names another way to log in, such as a certificate
        # libpq ignores a file that others than its owner may read, as Kubernetes makes them
        passwords = Path(tempfile.mkdtemp(), "pgpass")  # /tmp is in memory
        write_private(passwords, pgpass(DATABASE_PASSWORD.read_text().strip()).encode())
        found["PGPASSFILE"] = str(passwords)
    return found


def pgpass(password: str) -> str:
    r"""Return the content of libpq's password file with one password for all databases.

    Examples
    --------
    >>> pgpass("a:b\\c")
    '*:*:*:*:a\\:b\\\\c\n'
    """
    escaped = password.replace("\\", "\\\\").replace(":", "\\:")
    return f"*:*:*:*:{escaped}\n"
