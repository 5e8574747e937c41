"""The callbacks on the real packages, if they are installed: their base classes, and the arguments of each call."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

FIGURES = {"memory/reserved": 2.0, "memory/fragmentation": 0.25}


def test_transformers_calls_it_and_every_reporter_gets_the_figures(tmp_path, monkeypatch):
    from gapless.integrations.transformers import MemoryCallback

    monkeypatch.setattr(MemoryCallback, "_figures", lambda self: FIGURES)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return {"loss": (self.weight * x).sum()}

    class Reporter(transformers.TrainerCallback):
        seen = []

        def on_log(self, args, state, control, logs=None, **more):
            self.seen.append((state.global_step, dict(logs or {})))

    arguments = transformers.TrainingArguments(str(tmp_path), max_steps=5, report_to=[], use_cpu=True, disable_tqdm=True)
    data = [{"x": torch.ones(2)}] * 8
    trainer = transformers.Trainer(Model(), arguments, train_dataset=data, callbacks=[Reporter()])
    MemoryCallback.attach(trainer, every=2)
    trainer.train()
    ours = [(step, logs) for step, logs in Reporter.seen if "memory/reserved" in logs]
    assert [step for step, _ in ours] == [2, 4]
    assert ours[0][1]["memory/fragmentation"] == 0.25
    assert sum("memory/reserved" in entry for entry in trainer.state.log_history) == 2


def test_lightning_calls_it_and_every_logger_gets_the_figures(tmp_path, monkeypatch):
    from gapless.integrations.lightning import MemoryCallback

    monkeypatch.setattr(MemoryCallback, "_figures", lambda self: FIGURES)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def training_step(self, batch, index):
            return (self.weight * batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Logger(lightning.loggers.logger.Logger):
        name, version = "kept", 0

        def __init__(self):
            super().__init__()
            self.logged = []

        def log_metrics(self, metrics, step=None):
            self.logged.append((step, dict(metrics)))

        def log_hyperparams(self, *arguments, **more):
            pass

    logger = Logger()
    trainer = lightning.Trainer(
        max_steps=5,
        accelerator="cpu",
        logger=logger,
        callbacks=[MemoryCallback(every=2)],
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=1))
    ours = [step for step, metrics in logger.logged if "memory/reserved" in metrics]
    assert ours == [2, 4]
