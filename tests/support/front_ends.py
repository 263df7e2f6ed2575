"""The front ends of a server: several `cohort server up` with one authority, on one PostgreSQL."""

import contextlib
import os
import shutil
import signal

from deploy.flower.app_folder import app_folder
from deploy.hosting.programs import MARK
from deploy.hosting.server import Server
from deploy.processes.groups import processes_with, wait_until
from deploy.processes.ports import free_ports

from .devices import Running


def folders_of_one_server(*folders, hosts=("localhost",)):
    """Make the folders of front ends of one server; each may have a host of its own."""
    first, *others = folders
    Server(first, hosts).save()
    for each in others:
        each.mkdir(mode=0o700)
        shutil.copytree(first / "pki", each / "pki")
    return folders


def whole_app(folder):
    """Make the app of `nemesis.federations.write_app` also the home of all programs: PYTHONPATH names it."""
    shutil.copytree(app_folder() / "deploy", folder / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


class FrontEnd(Running):
    """A `cohort server up` whose folder of runs others have too.

    Parameters
    ----------
    folder : Path
    database : str, optional
        The address. Without it, the front end of this folder is started again.
    """

    def __init__(self, folder, database=None, runs=None, host="localhost", environment=()):
        self.folder = folder
        options = ()
        if database is None:
            self.port = Server.load(folder).port
        else:
            self.port, control = free_ports(2)
            options = ("--host", host, "--listen", "127.0.0.1", "--database", database)
            options += ("--port", str(self.port), "--control-port", str(control), "--runs", str(runs))
        super().__init__(
            folder.with_name(f"{folder.name}.log"),
            *("server", "up", "--dir", str(folder), *options),
            environment=environment,
        )

    @property
    def pids(self):
        return processes_with(MARK, str(self.folder))

    def kill(self):
        """Kill its processes as a power cut does: at once."""
        for pid in (self.process.pid, *self.pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        assert wait_until(lambda: not self.pids, 20)
