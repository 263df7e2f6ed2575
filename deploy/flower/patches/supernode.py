"""The patch of `flower-supernode`: this project's loop in place of Flower's, and patience with slow apps."""

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from functools import partial
from logging import getLogger
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from deploy.fleet.duties import joined_objects
from deploy.fleet.supernode import connection, node
from deploy.flower.commands import TRUST
from deploy.flower.patches.shared import LOOK, like, replace, skip_unseen_lines
from deploy.flower.patches.superexec import SuperExecThread
from deploy.flower.versions import refusal
from deploy.processes.groups import LOST

LONGEST_SILENCE = 120
"""The longest time in seconds until a ClientApp's process begins its task, and between two of its heartbeats.

In stock Flower these are 30 and 60 s. While a fork server imports torch, it forks no process. On a slow
device the import takes longer than 30 s, so the task would expire before its process is forked."""

ENDED = "SuperNode terminated gracefully."  # the last line after a signal, or after a refused request

_SUPERNODE = "flwr.supernode.cli.flower_supernode"
_HANDLERS = "flwr.supernode.servicer.runtime.runtime_handlers"
_CORE_STATE = "flwr.supercore.corestate.in_memory_corestate"
_EXIT = "flwr.supercore.exit"
_DATABASE = "flwr.supercore.object_store.sql_object_store"


def patch() -> None:
    """Apply all patches of the SuperNode except its guards."""
    skip_unseen_lines()
    wait_for_slow_apps()


def guard() -> None:
    """Let `flower-supernode` run this loop, which checks bundles, in place of Flower's.

    The environment variable `TRUST` may name the file with the bundle that the device trusts
    (`bundles.fetch`). The variable is hidden from the ClientApps that this process starts.
    """
    settings = os.environ.pop(TRUST, None)
    trust = None if settings is None else Path(settings)
    replace(_SUPERNODE, start_client_internal=partial(start, trust=trust))


def start(
    *,
    trust: Path | None,
    state_factory: Any,
    server_address: str,
    node_config: Any,
    root_certificates: bytes | str | None,
    insecure: bool,
    authentication_keys: Any,
    max_retries: int | None,
    max_wait_time: float | None,
    runtime_api_address: str,
    runtime_certificates: Any,
    runtime_root_certificates_path: str | None,
    runtime_dependency_install: bool,
    isolation: str,
    **others: Any,
) -> NoReturn:
    """Connect and run the loop until the process ends. The arguments are the options of `flower-supernode`.

    `trust`: the file with the bundle that the device trusts (`bundles.fetch`). `state_factory`: gives the
    state to the SuperNode's API. `isolation`: must be "subprocess": the SuperNode starts the ClientApps.
    `**others`: options without a value. An option with a value, such as trusted entities, is refused.
    """
    refused = [name for name, value in others.items() if value]
    if isolation != "subprocess":
        refused.append(f"isolation={isolation}")
    if refused:
        _refuse(f"this project's SuperNode has no {', '.join(refused)}")
    if insecure and authentication_keys is not None:
        _refuse("a key needs TLS: use --root-certificates instead of --insecure")
    host, _, port = server_address.rpartition(":")
    if not host or not port.isdecimal():
        _refuse(f"--superlink {server_address}: must be HOST:PORT")
    importlib.import_module(_EXIT).register_signal_handlers(event_type=None, exit_message=ENDED)
    state = node.node_state(state_factory.objectstore_factory.store())
    state_factory.state_instance = state
    command = [
        "flower-superexec",
        "--runtime-api-address",
        runtime_api_address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]"),
        *(("--insecure",) if runtime_certificates is None else ()),
        *(("--root-certificates", runtime_root_certificates_path) if runtime_root_certificates_path else ()),
        *(("--allow-runtime-dependency-installation",) if runtime_dependency_install else ()),
    ]
    handlers = like(importlib.import_module(_HANDLERS))
    joined_objects.answer_apps(handlers)
    SuperExecThread(command, state, handlers, state.due, LOOK)

    def run() -> None:
        with connection.connect(
            server_address, insecure, root_certificates, authentication_keys, max_retries, max_wait_time
        ) as connected:
            state.set_node_id(connected.node_id)
            getLogger("flwr").info("SuperNode ID: %s", connected.node_id)
            loop = node.Node(connected, state, node_config, trust)
            while True:
                loop.step()

    end_with(run)


def end_with(loop: Callable[[], None]) -> NoReturn:
    """Run a loop, and end the process when the loop has ended.

    The loop returns or raises only after an error. Without this function, the thread of the SuperNode's API
    would keep the useless process alive.
    """
    try:
        loop()
    except (SystemExit, KeyboardInterrupt):  # Flower has ended the API
        raise
    except BaseException:
        traceback.print_exc()
    _leave(LOST)


def _refuse(reason: str) -> NoReturn:
    getLogger("flwr").error("flower-supernode does not start: %s", reason)
    _leave(1)


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait_for_slow_apps() -> None:
    """Let a ClientApp's task expire after `LONGEST_SILENCE` seconds without a sign of life."""
    replace(_CORE_STATE, HEARTBEAT_DEFAULT_INTERVAL=LONGEST_SILENCE, HEARTBEAT_PATIENCE=1)


def leave_out_the_database() -> None:
    """Replace Flower's module for databases by a stub, which saves 30 MB of memory.

    Only a SuperLink with --database needs the module. Call this before Flower is imported. With a version of
    Flower that was not tried, this function does nothing.
    """
    if refusal():
        return

    class SqlObjectStore:
        def __init__(self, *_: object) -> None:
            raise RuntimeError("this program keeps its state in memory")

    module = ModuleType(_DATABASE)
    module.SqlObjectStore = SqlObjectStore  # type: ignore[attr-defined]
    sys.modules[_DATABASE] = module
