"""The model files of a run: the best model so far, and the last."""

import json
import math
from collections.abc import Mapping
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common import log
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from strategies.checkpoint import replacing
from strategies.json_text import parse_json
from tasks.base import Metrics

BEST = "best.safetensors"
FINAL = "model.safetensors"
ABOUT = "cohort"  # the only metadata entry; it holds the model's round and metrics as JSON


class Models:
    """Writes the model files, each completely or not at all, in the safetensors format.

    Their metadata hold the model's round; those of the best model also hold its test accuracy and test loss.
    If the folder already holds a best model, this model is the best so far. Without a folder, nothing is
    written.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.best_round: int | None = None  # the round of the best model; None if there is none yet
        self._best = (-math.inf, -math.inf)  # the best model's test accuracy, and minus its test loss
        if folder is not None and (folder / BEST).exists():
            try:
                with safe_open(folder / BEST, "numpy") as file:
                    about = parse_json(file.metadata()[ABOUT])
                self._best = (about["test_accuracy"], -about["test_loss"])
                self.best_round = about["round"]
            except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
                log(WARNING, "%s is ignored: %s", folder / BEST, error)

    def offer(self, round: int, arrays: Mapping[str, NDArray[Any]], test: Metrics) -> None:
        """Write a model if it has the best test accuracy so far. At equal accuracy, the lower loss is better.

        If the file cannot be written, for example to a full disk, a warning is logged and the run goes on.
        """
        worth = (test.accuracy, -test.loss)
        if self._folder is None or math.isnan(test.loss) or worth <= self._best:
            return
        try:
            _write(self._folder / BEST, arrays, round=round, test_accuracy=test.accuracy, test_loss=test.loss)
        except OSError as error:
            log(WARNING, "THE BEST MODEL SO FAR, OF ROUND %d, IS NOT SAVED: %s", round, error.strerror)
            return
        self._best, self.best_round = worth, round

    def save_final(self, round: int, arrays: Mapping[str, NDArray[Any]]) -> Path | None:
        """Write the last model, or raise an OSError. Return the path of its file; None without a folder."""
        return None if self._folder is None else _write(self._folder / FINAL, arrays, round=round)


def _write(path: Path, arrays: Mapping[str, NDArray[Any]], **about: float) -> Path:
    with replacing(path) as file:
        # The metadata are one entry. Several entries would be written in random order, so equal runs would
        # get different files.
        file.write(save(dict(arrays), metadata={ABOUT: json.dumps(about)}))
    return path
