"""Checkpoints: where a run saves its checkpoints, and whether it resumes from the last one."""

from dataclasses import dataclass
from pathlib import Path

from ..selectors import checks


@dataclass(frozen=True)
class Checkpoints:
    """Where the checkpoint of each round is saved, and whether a run continues from the last checkpoint.

    Attributes
    ----------
    folder : str or Path
        The folder of this run's checkpoints.
    resume : bool (default: False)
        With True, the run continues from the last checkpoint in the folder. If the folder has no checkpoint,
        the run begins with round 1.
    """

    folder: str | Path
    resume: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | Path):
            raise TypeError(f"checkpoints.folder = {self.folder!r}: must be the path of a folder")
        if self.folder == "":  # for example an environment variable that is not set
            raise ValueError("checkpoints.folder = '': must be the path of a folder")
        checks.boolean("checkpoints.resume", self.resume)
