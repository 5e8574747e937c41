"""Streamed weights in torch over the stand-in card: what is allocated there and pinned here, devices, streams, captures
and the command. test_stream.py compares values."""

import json
import sys

import pytest

MODEL = """
import collections, copy, ctypes, gc, io, json, os, time, torch, gapless
from torch import nn
MIB = 1 << 20

class Block(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Model(nn.Module):
    def __init__(self, depth=6, width=1024):
        super().__init__()
        self.tokens = nn.Embedding(2048, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 2048, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def inputs():
    return torch.zeros(2, 8, dtype=torch.long, device="cuda")

def weights(model):
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))

def host():
    found = (ctypes.c_uint64 * 6)()
    gapless._memory._started().optional("gapless_host_stats", found)
    return {"live": found[0], "allocated": found[1], "peak": found[3]}
"""


def test_weights_keep_to_their_budget_and_come_back(real):
    done = real.passes(
        MODEL
        + """
gapless.enable()
model = Model()
values = {name: value.clone() for name, value in model.state_dict().items()}
objects = [id(parameter) for parameter in model.parameters()]
size = weights(model)
torch.cuda.init()
stream = gapless.stream(model, "40MiB")
assert {parameter.device.type for parameter in model.parameters()} == {"cuda"}
# Pinned to the page, not to powers of two.
assert size <= host()["live"] <= size + 4096 and host()["allocated"] < size + len(values) * 4096, (size, host())
before = torch.cuda.memory_allocated()
assert before == stream.stats()["on_card"] < MIB, before
with torch.no_grad():
    model(inputs())
gc.collect()
torch.cuda.reset_peak_memory_stats()
held = torch.cuda.memory_allocated() - stream.stats()["on_card"]
with torch.inference_mode():
    for _ in range(4):
        out = model(inputs())
    del out
    # Activations are a megabyte or so.
    peak = torch.cuda.max_memory_allocated() - held
figures = stream.stats()
assert figures["peak"] <= 40 * MIB and peak <= 42 * MIB, (figures, peak)
assert figures["late"] == figures["in_place"] == 0, figures
other = copy.deepcopy(model)
assert {parameter.device.type for parameter in other.parameters()} == {"cuda"}
del other
print(stream)
stream.stop()
stream.stop()
assert objects == [id(parameter) for parameter in model.parameters()]
assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
del model
gc.collect()
# A thread waits for the card's work, and tells.
until = time.monotonic() + 60
while gapless._memory._started().optional("gapless_pinned_look") and time.monotonic() < until:
    time.sleep(0.001)
print(host()["live"], torch.cuda.memory_allocated() - held)
"""
    )
    assert "stay" in done.out and "link" in done.out
    assert done.lines()[-1] == "0 0"


def test_a_model_of_the_card_goes_back_to_it_and_all_of_it_may_stay(real):
    real.passes(
        MODEL
        + """
model = Model().cuda()
size = weights(model)
before = torch.cuda.memory_allocated()
with gapless.stream(model, 30 * MIB, between=True) as stream:
    gc.collect()
    assert torch.cuda.memory_allocated() < before - size + 2 * MIB
    with torch.no_grad():
        for _ in range(4):
            model(inputs())
    assert stream.stats()["peak"] <= 30 * MIB
workspace = torch.cuda.memory_allocated() - before
assert {parameter.device.type for parameter in model.parameters()} == {"cuda"}
with gapless.stream(model, 2 * size) as stream:
    with torch.no_grad():
        for _ in range(4):
            model(inputs())
    figures = stream.stats()
    assert figures["copied_bytes"] <= size and figures["resident"] == size, figures
model.cpu()
assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
"""
    )


def test_weights_make_room_before_a_request_fails(real):
    done = real.passes(
        MODEL
        + """
gapless.enable(limit="96MiB")
model = Model(depth=12)
stream = gapless.stream(model, "80MiB")
with torch.no_grad():
    for _ in range(4):
        # The workspace of matrix products takes 32 MiB.
        model(inputs())
    for _ in range(3):
        model(inputs())
        held = torch.empty(48 * MIB, dtype=torch.uint8, device="cuda")
        model(inputs())
        del held
figures = stream.stats()
print(figures["passes"], figures["relieved"] > 0, figures["peak"] <= 80 * MIB)
stream.stop()
"""
    )
    assert done.lines()[-1] == "10 True True"


def test_moves_captures_and_mistakes(real):
    done = real.passes(
        MODEL
        + """
model = Model()
stream = gapless.stream(model, "40MiB")
model.cuda().to("cuda:0")
with torch.no_grad():
    model(inputs())
    model.half()
    assert model.head.weight.dtype == torch.float16 and model.head.weight.is_cuda
    for _ in range(3):
        assert model(inputs()).dtype == torch.float16
    assert stream.stats()["peak"] <= 40 * MIB
    model.blocks[0].cpu()
    assert model.blocks[0].up.weight.device.type == "cpu" and model.blocks[1].up.weight.is_cuda
    model.blocks[0].cuda()
    model(inputs())
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model(inputs())
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            model(inputs())
    except gapless.GaplessError as error:
        print(error)
stream.stop()
for wrong in ({"budget": "much"}, {"budget": 0}):
    try:
        gapless.stream(model, **wrong)
    except gapless.OptionError as error:
        print(error)
"""
    )
    lines = done.lines()
    assert lines[0].startswith("a streamed model cannot be captured into a CUDA graph")
    assert lines[1].startswith("budget=much is not") and lines[2].startswith("budget=0 is not")


PIPELINE = """
class Pipeline:
    # As diffusers has them: to() moves each of its modules.
    def __init__(self):
        self.encoder, self.denoiser = Model(3), Model(8)

    def to(self, device):
        for module in (self.encoder, self.denoiser):
            module.to(device)
        return self

pipeline = Pipeline().to("cuda")
probe = nn.Linear(8, 8).cuda()
converted = Model(2).to("cuda", torch.bfloat16)
assert {parameter.dtype for parameter in converted.parameters()} == {torch.bfloat16}
with torch.inference_mode():
    for _ in range(3):
        pipeline.encoder(inputs())
        for _ in range(3):
            pipeline.denoiser(inputs())
        converted(inputs())
        probe(torch.zeros(1, 8, device="cuda"))
"""


def test_the_command_streams_a_program_that_knows_nothing_of_it(real, command, tmp_path):
    program = tmp_path / "infer.py"
    program.write_text(
        MODEL.replace(", gapless", "")
        + PIPELINE
        + """
import gapless
stream = gapless._stream.auto.stream_of(0)
figures = stream.stats()
size = weights(pipeline.encoder) + weights(pipeline.denoiser) + weights(converted)
print(json.dumps({"weights": figures["weights"], "size": size, "budget": figures["budget"], "peak": figures["peak"], "passes": figures["passes"]}))
print(torch.cuda.memory_allocated() < 90 * MIB)
"""
    )
    package = {"GAPLESS_LIBRARY": real.library, "PYTHONPATH": None}
    done = real.start([command, "run", "--stream-weights", "40MiB", "--stats", "--", sys.executable, program], **package)
    assert done.code == 0, done.out + done.err
    figures = json.loads(done.lines()[0])
    assert figures["weights"] == figures["size"] and figures["budget"] == 40 << 20
    assert figures["peak"] <= 40 << 20 and figures["passes"] == 15
    assert done.lines()[1] == "True"
    refused = real.start([command, "run", "--stream-weights", "soon", "--", sys.executable, program], **package)
    assert refused.code == 2 and "--stream-weights" in refused.err


def test_accelerate_s_hooks_are_replaced(real):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    real.passes(
        MODEL
        + """
import tempfile
from accelerate import cpu_offload, dispatch_model

gapless.enable()
places = {"tokens": 0, "blocks.0": 0, "blocks.1": "cpu", "blocks.2": "disk", "head": "cpu"}
ways = (
    lambda model: cpu_offload(model, "cuda:0"),
    lambda model: cpu_offload(model, "cuda:0", offload_buffers=True),
    lambda model: dispatch_model(model, places, main_device="cuda:0", offload_dir=tempfile.mkdtemp()),
)
for put in ways:
    model = Model(3)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    put(model)
    assert any(parameter.is_meta for parameter in model.parameters())
    with gapless.stream(model, 10 * MIB) as stream:
        assert not any(hasattr(module, "_hf_hook") for module in model.modules()) and not hasattr(model, "hf_device_map")
        assert {parameter.device.type for parameter in model.parameters()} == {"cuda"}
        with torch.no_grad():
            for _ in range(3):
                model(inputs())
        figures = stream.stats()
        assert figures["passes"] == 3 and figures["copies"] > 0 and figures["peak"] <= 10 * MIB, figures
    model.to("cpu")
    # What accelerate had on the card went through it, and the stand-in card keeps no values of all that it holds.
    different = [name for name, value in model.state_dict().items() if not torch.equal(value, values[name])]
    assert all(put is ways[2] and name.startswith(("tokens", "blocks.0")) for name in different), different
"""
    )
