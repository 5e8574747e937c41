"""Memory figures in the logs of Hugging Face's Trainer.

    from gapless.integrations.transformers import MemoryCallback

    trainer = Trainer(...)
    MemoryCallback.attach(trainer, every=10)
    trainer.train()

The figures go through `trainer.log`, so TensorBoard, Weights & Biases and every other reporter get them.
"""

import importlib
import warnings
from typing import Any

from .._errors import GaplessWarning
from ._callback import Memory, import_base

_transformers = import_base("transformers", ("transformers",), importlib.import_module)


class MemoryCallback(Memory, _transformers.TrainerCallback):  # type: ignore[misc,name-defined]
    """Logs memory figures every `every` optimizer steps; see `gapless.integrations.figures` for what they are.

    The Trainer does not tell callbacks who it is, so use `MemoryCallback.attach(trainer)`. A callback that was given in
    `callbacks=[...]` instead logs nothing, and warns, until its `trainer` is set.
    """

    trainer: Any = None

    @classmethod
    def attach(cls, trainer: Any, *arguments: Any, **options: Any) -> "MemoryCallback":
        """Adds a callback with these options to `trainer`, and returns it."""
        callback = cls(*arguments, **options)
        callback.trainer = trainer
        trainer.add_callback(callback)
        return callback

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._last = None
        if self.trainer is None:
            warnings.warn(
                "this MemoryCallback does not know its trainer, and logs nothing: use MemoryCallback.attach(trainer) after the Trainer is made",
                GaplessWarning,
                stacklevel=2,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.trainer is not None and self._due(state.global_step):
            found = self._figures()
            if found:
                self.trainer.log(found)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._finish(getattr(args, "process_index", 0), getattr(args, "world_size", 1))
