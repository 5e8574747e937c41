"""Callbacks for trainers, on small fakes with the interfaces of the real ones."""

import importlib
import sys
import types

import pytest

import gapless
from gapless import integrations
from gapless.integrations import _callback

STATS = {
    "allocated_bytes.all.current": 1 << 30,
    "reserved_bytes.all.current": 2 << 30,
    "allocated_bytes.all.peak": 3 << 30,
    "reserved_bytes.all.peak": 4 << 30,
    "num_alloc_retries": 2,
    "num_ooms": 1,
}


@pytest.fixture
def torch(monkeypatch):
    cuda = types.SimpleNamespace(is_initialized=lambda: True, memory_stats=lambda device=None: STATS)
    fake = types.SimpleNamespace(cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def fresh(name, monkeypatch):
    """Imports a module of integrations anew, for the fakes of this test."""
    monkeypatch.delitem(sys.modules, f"gapless.integrations.{name}", raising=False)
    module = importlib.import_module(f"gapless.integrations.{name}")
    sys.modules.pop(f"gapless.integrations.{name}")
    return module


def test_figures_are_a_plain_dict(torch, monkeypatch):
    assert integrations.figures() == {
        "memory/allocated": 1.0,
        "memory/reserved": 2.0,
        "memory/peak_allocated": 3.0,
        "memory/peak_reserved": 4.0,
        "memory/fragmentation": 0.25,
        "memory/retries": 2.0,
        "memory/ooms": 1.0,
    }
    assert integrations.figures(prefix="", unit="bytes")["reserved"] == 2 << 30
    with pytest.raises(gapless.GaplessError, match="GB"):
        integrations.figures(unit="GB")
    torch.cuda.is_initialized = lambda: False
    assert integrations.figures() == {}
    monkeypatch.delitem(sys.modules, "torch")
    assert integrations.figures() == {}


def test_figures_come_from_gapless_where_it_is_on(torch, monkeypatch):
    own = {**STATS, "reserved_bytes.all.current": 5 << 30, "gapless.budget.limit": 6 << 30}
    monkeypatch.setattr(gapless._session, "enabled", lambda: True)
    monkeypatch.setattr(gapless._session, "stats", lambda device=None: own)
    found = integrations.figures()
    assert (found["memory/reserved"], found["memory/budget"]) == (5.0, 6.0)


def test_no_memory_is_no_fragmentation(torch):
    torch.cuda.memory_stats = lambda device=None: {}
    assert integrations.figures()["memory/fragmentation"] == 0.0


class Trainer:
    """Hugging Face's, as far as a callback sees it."""

    def __init__(self):
        self.callbacks, self.logged = [], []
        self.state = types.SimpleNamespace(global_step=0)
        self.args = types.SimpleNamespace(process_index=0, world_size=1)

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def log(self, logs, start_time=None):
        self.logged.append((self.state.global_step, logs))

    def call(self, event):
        for callback in self.callbacks:
            getattr(callback, event)(self.args, self.state, types.SimpleNamespace(), model=None, optimizer=None)

    def train(self, steps):
        self.call("on_train_begin")
        for _ in range(steps):
            self.state.global_step += 1
            self.call("on_step_end")
        self.call("on_train_end")


@pytest.fixture
def transformers(monkeypatch):
    package = types.ModuleType("transformers")
    package.TrainerCallback = type("TrainerCallback", (), {})
    monkeypatch.setitem(sys.modules, "transformers", package)
    return fresh("transformers", monkeypatch)


def test_the_trainer_logs_every_few_steps(torch, transformers):
    trainer = Trainer()
    callback = transformers.MemoryCallback.attach(trainer, every=3)
    assert isinstance(callback, sys.modules["transformers"].TrainerCallback)
    trainer.train(7)
    assert [step for step, _ in trainer.logged] == [3, 6]
    assert trainer.logged[0][1]["memory/peak_reserved"] == 4.0


def test_a_callback_without_its_trainer_warns(torch, transformers):
    trainer = Trainer()
    trainer.add_callback(transformers.MemoryCallback())
    with pytest.warns(gapless.GaplessWarning, match="attach"):
        trainer.train(20)
    assert trainer.logged == []


def test_files_are_written_at_the_end(torch, transformers, monkeypatch, tmp_path):
    written = []
    monkeypatch.setattr(_callback._report, "dump", lambda path: written.append(path.name))
    monkeypatch.setattr(_callback._report, "report", lambda: types.SimpleNamespace(html=lambda path: written.append(path.name)))
    trainer = Trainer()
    transformers.MemoryCallback.attach(trainer, snapshot=tmp_path / "run.pickle", page=str(tmp_path / "run.html"))
    trainer.train(1)
    trainer.args.world_size, trainer.args.process_index = 4, 2
    trainer.train(1)
    assert written == ["run.pickle", "run.html", "run.rank2.pickle", "run.rank2.html"]


def test_a_report_that_fails_does_not_fail_the_run(torch, transformers, monkeypatch):
    def broken(path):
        raise gapless.GaplessError("no memory history")

    monkeypatch.setattr(_callback._report, "dump", broken)
    trainer = Trainer()
    transformers.MemoryCallback.attach(trainer, snapshot="run.pickle")
    with pytest.warns(gapless.GaplessWarning, match=r"run\.pickle was not written: no memory history"):
        trainer.train(1)


class Logger:
    def __init__(self):
        self.logged = []

    def log_metrics(self, metrics, step=None):
        self.logged.append((step, metrics))


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_lightnings_loggers_get_them(torch, monkeypatch, name):
    package = types.ModuleType(name)
    package.Callback = type("Callback", (), {})
    for part in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, part, None)
    monkeypatch.setitem(sys.modules, name.split(".")[0], types.ModuleType(name.split(".")[0]))
    monkeypatch.setitem(sys.modules, name, package)
    module = fresh("lightning", monkeypatch)
    callback = module.MemoryCallback(every=2)
    assert isinstance(callback, package.Callback)
    trainer = types.SimpleNamespace(global_step=0, loggers=[Logger(), Logger()], global_rank=0, world_size=1)
    callback.on_train_start(trainer, None)
    # Two batches a step: gradients are accumulated.
    for batch in range(8):
        trainer.global_step = (batch + 1) // 2
        callback.on_train_batch_end(trainer, None, None, None, batch)
    callback.on_train_end(trainer, None)
    assert [step for step, _ in trainer.loggers[0].logged] == [2, 4]
    assert trainer.loggers[0].logged == trainer.loggers[1].logged


def test_a_missing_package_says_what_to_install(monkeypatch):
    for name, packages in [("transformers", ["transformers"]), ("lightning", ["lightning", "lightning.pytorch", "pytorch_lightning"])]:
        for package in packages:
            monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ImportError, match=f"pip install {name}"):
            fresh(name, monkeypatch)


def test_a_step_count_that_is_none_is_refused(transformers):
    for every in (0, -3, 2.5, "10"):
        with pytest.raises(gapless.OptionError, match="every"):
            transformers.MemoryCallback(every)


def test_importing_gapless_imports_neither():
    import subprocess

    program = "import gapless, gapless.integrations, sys; print([m for m in ('torch', 'transformers', 'lightning', 'IPython') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": "python"}, check=True)
    assert done.stdout.strip() == "[]"
