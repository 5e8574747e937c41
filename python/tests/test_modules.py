"""gapless.name_modules(): which layer holds the memory, by torch's own recorder and by the flight recorder.

Each module of a case keeps 1 MiB in its forward pass and 2 MiB in its backward pass, or other figures that the case
names. The report's figure of each path has to be what its module kept. All cases of a recorder run in one process, each
below a name of its own, so that one case also shows what the ones before it left behind.
"""

import json
import subprocess
import textwrap

import pytest

RECORDERS = ("native", "gapless")

START = """
import copy, gc, io, json, os, pickle, sys, threading, torch, gapless
from torch import nn
from torch.utils.checkpoint import checkpoint
MIB = 1 << 20
KEPT = []

def take(mib):
    KEPT.append(torch.empty(mib * MIB, dtype=torch.uint8, device="cuda"))

class Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mib):
        ctx.mib = mib
        ctx.save_for_backward(x)
        take(mib)
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        ctx.saved_tensors
        take(2 * ctx.mib)
        return grad * 1, None

class Layer(nn.Module):
    def __init__(self, mib=1):
        super().__init__()
        self.mib = mib

    def forward(self, x):
        return Take.apply(x, self.mib)

class Block(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner or Layer()

    def forward(self, x):
        return Take.apply(self.inner(Take.apply(x, 4)), 8)

def entry():
    return torch.ones(4, device=DEVICE, requires_grad=True)

def train(model, x=None):
    model(entry() if x is None else x).sum().backward()

def named(name, model):
    gapless.name_modules(model, name=name)
    return model

# A checkpoint whose forward pass begins with CUDA is refused by torch.
torch.cuda.init()
"""

# A program for each case, and the MiB of each path; "" stands for all that is outside of modules.
CASES = {
    "chain": ("train(named('chain', nn.Sequential(Layer(), Layer())))", {"chain.0": 3, "chain.1": 3}),
    "nested": ("train(named('nested', nn.Sequential(Block(), Block())))", {f"nested.{i}{end}": mib for i in (0, 1) for end, mib in (("", 36), (".inner", 3))}),
    "ends": (
        """
        model = named('ends', Block())
        take(1)
        y = model(entry())
        take(1)
        Take.apply(y * 2, 1).sum().backward()
        take(1)
        """,
        {"ends": 36, "ends.inner": 3, "": 6},
    ),
    "before": (
        """
        x = Take.apply(entry(), 1)
        train(named('before', nn.Sequential(Layer())), x)
        """,
        {"before.0": 3, "": 3},
    ),
    "shared": (
        """
        inner = Layer()
        model = nn.Module()
        model.p, model.q = Block(inner), Block(inner)
        model.forward = lambda x: model.q(model.p(x))
        train(named('shared', model))
        """,
        {"shared.p": 36, "shared.q": 36, "shared.p.inner": 3, "shared.q.inner": 3},
    ),
    "twice": ("layer = Layer(); train(named('twice', nn.Sequential(layer, nn.ReLU(), layer)))", {"twice.0": 6}),
    "cycle": (
        """
        model = Block()
        model.inner.above = [model]
        model.inner._modules['up'] = model
        train(named('cycle', model))
        """,
        {"cycle": 36, "cycle.inner": 3},
    ),
    "identity": ("train(named('identity', nn.Sequential(Layer(), nn.Identity(), nn.Dropout(0.0), Layer())))", {"identity.0": 3, "identity.3": 3}),
    "outputs": (
        """
        class Out(nn.Module):
            def __init__(self, kind):
                super().__init__()
                self.kind = kind

            def forward(self, x, *, more=None):
                y = Take.apply(x if more is None else more, 1)
                return {'tuple': (y, None), 'list': [y], 'dict': {'y': y}, 'deep': ((y,), 3)}[self.kind]

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.parts = nn.ModuleDict({kind: Out(kind) for kind in ('tuple', 'list', 'dict', 'deep')})

            def forward(self, x):
                for kind, part in self.parts.items():
                    found = part(None, more=x) if kind == 'dict' else part(x)
                    found = found['y'] if kind == 'dict' else found[0]
                    x = found[0] if kind == 'deep' else found
                    x = Take.apply(x, 16)
                return x

        train(named('outputs', Model()))
        """,
        {"outputs": 192, **{f"outputs.parts.{kind}": 3 for kind in ("tuple", "list", "dict", "deep")}},
    ),
    "branches": (
        """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.q, self.k, self.v, self.out = Layer(), Layer(), Layer(), Layer()

            def forward(self, x):
                return x + self.out(Take.apply(self.q(x) * self.k(x), 16) + self.v(x))

        train(named('branches', nn.Sequential(Attention(), Attention())))
        """,
        {f"branches.{i}{end}": mib for i in (0, 1) for end, mib in (("", 48), (".q", 3), (".k", 3), (".v", 3), (".out", 3))},
    ),
    "apart": (
        """
        class Gated(nn.Module):
            def __init__(self):
                super().__init__()
                self.gate, self.up, self.down = Layer(), Layer(), Layer()

            def forward(self, x):
                held = Take.apply(self.gate(x), 16)
                up = self.up(x)
                return self.down(held) * up

        train(named('apart', nn.Sequential(Gated(), Gated())))
        """,
        {f"apart.{i}{end}": mib for i in (0, 1) for end, mib in (("", 48), (".gate", 3), (".up", 3), (".down", 3))},
    ),
    "checkpoint": (
        """
        class Saved(Block):
            def forward(self, x):
                return checkpoint(super().forward, x, use_reentrant=False)

        train(named('checkpoint', nn.Sequential(Saved(), Saved())))
        """,
        # A recomputed tensor is kept twice; recomputation stops at the last tensor that is needed.
        {f"checkpoint.{i}{end}": mib for i in (0, 1) for end, mib in (("", 48), (".inner", 4))},
    ),
    "reentrant": (
        """
        class Saved(Block):
            def forward(self, x):
                return checkpoint(super().forward, x, use_reentrant=True)

        train(named('reentrant', nn.Sequential(Saved(), Saved())))
        """,
        {f"reentrant.{i}{end}": mib for i in (0, 1) for end, mib in (("", 48), (".inner", 4))},
    ),
    "raises": (
        """
        class Raises(nn.Module):
            def forward(self, x):
                take(1)
                raise KeyError('forward')

        model = named('raises', Block(Raises()))
        for _ in range(2):
            try:
                model(entry())
            except KeyError:
                take(16)
        train(named('after', Layer()))
        """,
        {"raises": 8, "raises.inner": 2, "": 32, "after": 3},
    ),
    "backward_raises": (
        """
        class Bad(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, grad):
                take(1)
                raise KeyError('backward')

        class Raises(nn.Module):
            def forward(self, x):
                return Bad.apply(x)

        model = named('backward_raises', nn.Sequential(Layer(), Raises()))
        try:
            train(model)
        except KeyError:
            pass
        take(16)
        train(named('backward_after', nn.Sequential(Layer())))
        take(16)
        """,
        {"backward_raises.0": 1, "backward_raises.1": 1, "backward_after.0": 3, "": 32},
    ),
    "lazy": (
        """
        class Lazy(nn.Module):
            def forward(self, x):
                if not hasattr(self, 'late'):
                    self.late = Block()
                return self.late(x)

        model = named('lazy', nn.Sequential(Lazy()))
        train(model)
        train(model)
        """,
        {"lazy.0.late": 72, "lazy.0.late.inner": 6},
    ),
    "stranger": (
        """
        class Uses(nn.Module):
            def __init__(self):
                super().__init__()
                self.others = [Layer()]

            def forward(self, x):
                return self.others[0](x)

        train(named('stranger', nn.Sequential(Uses())))
        Layer()(entry())
        """,
        {"stranger.0": 3, "": 1},
        {"stranger.0": 3, "Layer": 1},
    ),
    "generator": (
        """
        class Steps(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Layer()

            def forward(self, x):
                for _ in range(2):
                    x = self.inner(x)
                    yield x

        for x in named('generator', Steps())(entry()):
            take(16)
        x.sum().backward()
        """,
        {"generator.inner": 6, "": 32},
    ),
    "threads": (
        """
        models = [named(f'thread{i}', nn.Sequential(Block(), Block())) for i in range(3)]
        def work(model):
            for _ in range(2):
                train(model)
        threads = [threading.Thread(target=work, args=[model]) for model in models]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """,
        {f"thread{t}.{i}{end}": mib for t in range(3) for i in (0, 1) for end, mib in (("", 72), (".inner", 6))},
    ),
    "without_grad": (
        """
        model = named('without_grad', nn.Sequential(Block()))
        with torch.no_grad():
            model(entry())
        with torch.inference_mode():
            model(torch.ones(4, device=DEVICE))
        """,
        {"without_grad.0": 24, "without_grad.0.inner": 2},
    ),
    "again": (
        """
        y = named('again', nn.Sequential(Layer(), Layer()))(entry()).sum()
        y.backward(retain_graph=True)
        y.backward()
        """,
        {"again.0": 5, "again.1": 5},
    ),
    "grad_of_inputs": (
        """
        x = entry()
        y = named('grad_of_inputs', nn.Sequential(Layer(), Layer()))(x).sum()
        torch.autograd.grad(y, x)
        """,
        {"grad_of_inputs.0": 3, "grad_of_inputs.1": 3},
    ),
    "inside": (
        """
        class Inner(nn.Module):
            def __init__(self):
                super().__init__()
                self.energy = Layer()

            def forward(self, x):
                with torch.enable_grad():
                    y = x.detach().requires_grad_()
                    force, = torch.autograd.grad(self.energy(y).sum(), y)
                return Take.apply(x + force, 16)

        train(named('inside', nn.Sequential(Inner())))
        """,
        {"inside.0": 48, "inside.0.energy": 3},
    ),
    "replica": (
        """
        model = named('replica', nn.Sequential(Block()))
        train(nn.DataParallel(model, device_ids=[0]) if DEVICE == 'cuda' else model)
        """,
        {"replica.0": 36, "replica.0.inner": 3},
    ),
    "wrapped": (
        """
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)
        model = Block()
        model.weight = nn.Parameter(torch.ones(4))
        train(named('wrapped', DistributedDataParallel(model)), torch.ones(4, requires_grad=True))
        dist.destroy_process_group()
        """,
        {"wrapped": 36, "wrapped.inner": 3},
    ),
    "compiled": (
        """
        def forward(self, x):
            return self.inner(x * 2) + 1
        Small = type('Small', (nn.Module,), {'__init__': lambda self: (nn.Module.__init__(self), setattr(self, 'inner', nn.ReLU()))[0], 'forward': forward})
        torch._dynamo.reset()
        seen = []
        def backend(graph, inputs):
            seen.append(graph)
            def run(*args):
                take(1)
                return graph(*args)
            return run
        model = Small()
        outer = named('compiled', nn.Sequential(torch.compile(model, backend=backend, fullgraph=True), Layer()))
        for _ in range(3):
            train(outer)
        assert len(seen) == 1, len(seen)
        """,
        {"compiled.0": 3, "compiled.1": 9},
    ),
    "compiled_whole": (
        """
        torch._dynamo.reset()
        calls = []
        def backend(graph, inputs):
            calls.append(len([n for n in graph.graph.nodes if n.op == 'call_function']))
            def run(*args):
                take(1)
                return graph(*args)
            return run
        # More kinds of modules than one piece of code may be compiled for.
        for i in range(12):
            space = {}
            exec(f'def forward(self, x):\\n    return x * 2 + {i}', space)
            kind = type(f'Kind{i}', (nn.Module,), {'forward': space['forward']})
            model = named('compiled_whole', kind())
            model.compile(backend=backend, fullgraph=True)
            model(entry())
            model(entry())
        assert len(calls) == 12, calls
        """,
        {"compiled_whole": 24},
    ),
    "scripted": (
        """
        import warnings
        warnings.simplefilter('ignore')
        small = nn.Sequential(nn.ReLU(), nn.Tanh())
        model = named('scripted', nn.Sequential(torch.jit.script(small), Layer()))
        train(model)
        traced = torch.jit.trace(named('traced', nn.Sequential(nn.ReLU())), entry())
        traced(entry())
        graph = torch.fx.symbolic_trace(named('fx', nn.Sequential(nn.ReLU(), nn.Tanh())))
        assert len(graph.graph.nodes) == 4
        train(named('graph', nn.Sequential(graph, Layer())))
        """,
        {"scripted.1": 3, "graph.*": 3},
    ),
    "transforms": (
        """
        model = named('transforms', nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        parameters = dict(model.named_parameters())
        def loss(parameters, x):
            return torch.func.functional_call(model, parameters, (x,)).sum()
        each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, torch.ones(3, 4))
        assert each['0.weight'].shape == (3, 4, 4)
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode() as mode:
            fake = named('fake', nn.Sequential(nn.Linear(4, 4)))
            fake(torch.ones(2, 4)).sum().backward()
        from torch.fx.experimental.proxy_tensor import make_fx
        make_fx(lambda x: model(x).sum())(torch.ones(4))
        train(named('transformed', nn.Sequential(Layer())))
        """,
        {"transformed.0": 3},
    ),
    "streams": (
        """
        side = torch.cuda.Stream()
        model = named('streams', nn.Sequential(Block(), Layer()))
        with torch.cuda.stream(side):
            train(model)
        train(model)
        """,
        {"streams.0": 72, "streams.0.inner": 6, "streams.1": 6},
    ),
    "capture": (
        """
        model = named('capture', nn.Sequential(Layer(), Layer()))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(torch.empty(4, device='cuda'))
        KEPT.append(graph)
        """,
        {"capture.0": 1, "capture.1": 1},
    ),
    "odd_names": (
        """
        model = nn.ModuleDict({'conv-1': Layer(), 'größe 2': Layer(), '3': nn.Sequential(Layer())})
        model.forward = lambda x: model['3'](model['größe 2'](model['conv-1'](x)))
        train(named('odd names', model))
        """,
        {"odd names.conv-1": 3, "odd names.größe 2": 3, "odd names.3.0": 3},
    ),
    "compares": (
        """
        class Equal(Layer):
            def __eq__(self, other):
                raise TypeError('not to be compared')
            __hash__ = None
            def __len__(self):
                return 0
        train(named('compares', nn.Sequential(Equal(), Equal())))
        """,
        {"compares.0": 3, "compares.1": 3},
    ),
    "removed": (
        """
        model = nn.Sequential(Layer())
        with gapless.name_modules(model, name='first') as names:
            assert names.paths == ['first', 'first.0'], names.paths
            train(model)
        train(model)
        names.remove()
        second = gapless.name_modules(model, name='second')
        third = gapless.name_modules(model, name='third')
        second.remove()
        train(model)
        third.remove()
        """,
        {"first.0": 3, "third.0": 3, "": 3},
        # If all models are named, a model whose name was removed has its own again.
        {"first.0": 3, "Sequential.0": 3, "third.0": 3},
    ),
    "copied": (
        """
        plain, model = nn.Sequential(Block()), nn.Sequential(Block())
        named('copied', model)
        train(model)
        assert pickle.dumps(plain) == pickle.dumps(model)
        assert {k: v for k, v in vars(plain[0]).items() if k != '_modules'} == {k: v for k, v in vars(model[0]).items() if k != '_modules'}
        assert plain.state_dict().keys() == model.state_dict().keys()
        copied = named('copy', copy.deepcopy(model))
        train(copied)
        """,
        {"copied.0": 36, "copied.0.inner": 3, "copy.0": 36, "copy.0.inner": 3},
    ),
    "rebuilt": (
        """
        for _ in range(5):
            train(named('rebuilt', nn.Sequential(Block())))
            gc.collect()
        assert len(gapless._modules._references) < 200, len(gapless._modules._references)
        """,
        {"rebuilt.0": 180, "rebuilt.0.inner": 15},
    ),
}


def native(program):
    return f"torch.cuda.memory._record_memory_history(stacks='python', context='alloc')\n{program}\ntorch.cuda.memory._dump_snapshot(PATH)\n"


def modules(command, path):
    """MiB by path, of each module alone, and outside of all."""
    done = subprocess.run([command, "report", str(path), "--format", "json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["devices"][0]["modules"]
    assert found["outside"] + sum(row["own"] for row in found["rows"]) == found["total"]
    return {row["path"]: row["own"] >> 20 for row in found["rows"] if row["own"] >> 20}, found["outside"] >> 20


def folded(expected):
    """The same with `*` for the numbers of modules that have modules inside, as the report has them."""
    layers, found = set(), {}
    for path in expected:
        parts = path.split(".")
        for at, part in enumerate(parts[:-1]):
            if part.isdigit():
                layers.add(".".join("*" if p.isdigit() else p for p in parts[:at]))
    for path, mib in expected.items():
        parts = []
        for part in path.split("."):
            parts.append("*" if part.isdigit() and ".".join(parts) in layers else part)
        found[".".join(parts)] = found.get(".".join(parts), 0) + mib
    return found


# Other figures of graphs on the CPU: there the modules inside of `graph.0` keep nothing, so `1` is no number of a
# layer.
ON_CPU = {"scripted": {"scripted.1": 3, "graph.1": 3}}


@pytest.fixture(scope="module")
def results(bench, tmp_path_factory):
    """The report's figures of each case, by recorder and by the device of the graph; made at the first use."""
    folder, known = tmp_path_factory.mktemp("modules"), {}

    def of(command, recorder, device, case):
        key = (recorder, device, case)
        if key not in known:
            path = folder / f"{recorder}-{device}-{case}.{'pickle' if recorder == 'native' else 'gtrace'}"
            program = textwrap.dedent(CASES[case][0])
            program = f"PATH, DEVICE = {str(path)!r}, {device!r}\n{START}\n" + (native(program) if recorder == "native" else program)
            record = {} if recorder == "native" else {"GAPLESS_RECORD": str(path)}
            if record:
                program = "import gapless\nassert gapless.enable()\n" + program
            done = bench.passes(program, "-Wignore", **record)
            assert done.err == "", done.err
            known[key] = modules(command, path)
        return known[key]

    return of


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("recorder", RECORDERS)
@pytest.mark.parametrize("case", CASES)
def test_each_module_has_what_it_kept(real, command, results, case, recorder, device):
    # Some have other figures if all models are named, as the flight recorder names them.
    expected = dict(CASES[case][1 if recorder == "native" else -1])
    if device == "cpu":
        expected = dict(ON_CPU.get(case, expected))
    outside = expected.pop("", 0)
    assert results(command, recorder, device, case) == (folded(expected), outside)
