"""Memory figures in the loggers of Lightning.

    from gapless.integrations.lightning import MemoryCallback

    trainer = Trainer(callbacks=[MemoryCallback(every=10)])

The figures go to every logger of the trainer by `log_metrics`. Both `lightning` and `pytorch_lightning` will do.
"""

import importlib
import sys
from typing import Any

from ._callback import Memory, import_base

_NAMES = ("lightning.pytorch", "pytorch_lightning")
# A program uses one of the two, and its trainer takes callbacks of that one only.
_ordered = tuple(sorted(_NAMES, key=lambda name: name not in sys.modules))
_lightning = import_base("lightning", _ordered, importlib.import_module)


class MemoryCallback(Memory, _lightning.Callback):  # type: ignore[misc,name-defined]
    """Logs memory figures every `every` optimizer steps; see `gapless.integrations.figures` for what they are."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._last = None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if step > 0 and self._due(step):
            found = self._figures()
            for logger in trainer.loggers if found else ():
                logger.log_metrics(found, step=step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._finish(getattr(trainer, "global_rank", 0), getattr(trainer, "world_size", 1))
