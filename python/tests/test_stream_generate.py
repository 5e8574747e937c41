"""generate() of transformers' models while their weights stream: the same tokens as with all weights resident, for each
kind of cache and of search, and always an end.

Over the twin values are right. The stand-in card's kernels compute nothing, so there the program itself counts the
tokens: a loop that reads its end from the card has none."""

import copy
import faulthandler
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from conftest import PACKAGE  # noqa: E402
from gapless._stream import api  # noqa: E402
from stream_twin import stream  # noqa: E402

torch.set_num_threads(1)

TOKENS = 7
COMMON = {"vocab_size": 120, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
GPT2 = {"vocab_size": 120, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
T5 = {"vocab_size": 120, "d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
SLIDES = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 4, "head_dim": 8}


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON))


def tied():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))


def sliding():
    return transformers.MistralForCausalLM(transformers.MistralConfig(**COMMON, sliding_window=4))


def both():
    """Layers with caches of two kinds, and tied weights."""
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**COMMON, **SLIDES))


def experts():
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**COMMON, num_local_experts=4))


def encoder_decoder():
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**T5))


MODELS = [llama, tied, sliding, both, experts, encoder_decoder]
WAYS = {
    "dynamic": {},
    "no cache": {"use_cache": False},
    "static": {"cache_implementation": "static"},
    "beams": {"num_beams": 3},
    "beams, static": {"num_beams": 2, "cache_implementation": "static"},
    "sampling": {"do_sample": True, "top_k": 20, "num_return_sequences": 2},
    "lookup": {"prompt_lookup_num_tokens": 3},
    "scores": {"return_dict_in_generate": True, "output_scores": True},
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(api, "_SMALL", 1 << 10)
    # Against a wait that never ends: the whole file takes some 20 s.
    faulthandler.dump_traceback_later(280, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


def made(kind, seed=0):
    """A model with random weights whose tokens differ, and its resident twin."""
    torch.manual_seed(seed)
    model = kind().eval().requires_grad_(False)
    for tensor in model.parameters():
        if tensor.dim() > 1:
            tensor.mul_(8)
    return model, copy.deepcopy(model)


def size_of(*models):
    return sum(tensor.nbytes for model in models for tensor in {id(one): one for one in (*model.parameters(), *model.buffers())}.values())


def generated(model, ids, **how):
    """The tokens, and how often the model was called, which has a bound: a loop that does not end is found."""
    calls = [0]

    def count(module, args):
        calls[0] += 1
        assert calls[0] <= 4 * TOKENS, "generate() goes on and on"

    handle = model.register_forward_pre_hook(count)
    torch.manual_seed(1)
    try:
        out = model.generate(ids, **{"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0, **how})
    finally:
        handle.remove()
    if not isinstance(out, torch.Tensor):
        assert all(torch.isfinite(score).any() for score in out.scores)
        out = torch.cat([out.sequences.flatten(), torch.stack(out.scores).flatten().nan_to_num().to(out.sequences.dtype)])
    return out, calls[0]


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("share, between", [(0.15, False), (0.6, True)])
def test_generation_gives_the_resident_tokens_and_ends(kind, share, between):
    model, resident = made(kind)
    budget = int(size_of(model) * share)
    streamed = stream(model, budget, between=between, seed=3)
    different = set()
    for name, how in WAYS.items():
        # Some models have no cache of a fixed size.
        if "static" in name and kind is experts:
            continue
        for batch in (1, 3):
            if batch > 1 and "prompt_lookup_num_tokens" in how:
                continue
            for again in range(2):
                ids = torch.randint(3, 120, (batch, 5 + again))
                mine, theirs = generated(model, ids, **how), generated(resident, ids, **how)
                assert torch.equal(mine[0], theirs[0]) and mine[1] == theirs[1], (name, batch, again)
                different.update(mine[0].flatten().tolist())
    assert len(different) > 20, "the tokens say nothing"
    figures = streamed.stats()
    assert figures["peak"] <= budget and figures["copies"] > 0 and figures["escaped"] == 0
    assert not any(item.users or item.wanted for item in streamed._runner.items if not between)
    streamed.stop()


@pytest.mark.parametrize("together", [True, False], ids=["one stream", "two streams"])
def test_an_assistant_streams_too(together):
    """Two models by turns, one in the middle of the other's generation; and a model that skips its last layers."""
    (model, resident), (helper, resident_helper) = made(llama), made(llama, seed=5)
    if together:
        streams = [stream([model, helper], size_of(model, helper) // 4)]
    else:
        streams = [stream(model, size_of(model) // 4), stream(helper, size_of(helper) // 3)]
    for again in range(3):
        ids = torch.randint(3, 120, (1, 6 + again))
        mine, theirs = generated(model, ids, assistant_model=helper), generated(resident, ids, assistant_model=resident_helper)
        assert torch.equal(mine[0], theirs[0]) and mine[1] == theirs[1]
        mine, theirs = generated(model, ids, assistant_early_exit=1), generated(resident, ids, assistant_early_exit=1)
        assert torch.equal(mine[0], theirs[0]) and mine[1] == theirs[1]
    for one in streams:
        assert one.stats()["peak"] <= one.budget
        one.stop()


def test_tokens_that_another_thread_streams():
    model, resident = made(tied)
    streamed = stream(model, size_of(model) // 4)
    seen = []

    class Streamer(transformers.generation.streamers.BaseStreamer):
        def put(self, value):
            # A pass of another kind, of the same model, between two tokens.
            seen.append(value)
            assert torch.equal(model.transformer(torch.tensor([[1, 2]]))[0], resident.transformer(torch.tensor([[1, 2]]))[0])

        def end(self):
            seen.append(None)

    ids = torch.randint(3, 120, (1, 5))
    mine, theirs = generated(model, ids, streamer=Streamer()), generated(resident, ids)
    assert torch.equal(mine[0], theirs[0]) and len(seen) == TOKENS + 2
    streamed.stop()


def test_a_streamed_model_is_not_compiled_as_a_whole(monkeypatch):
    model, _ = made(llama)
    asked = []
    monkeypatch.setattr(type(model), "get_compiled_call", lambda self, config: asked.append(self) or self.__call__)
    config = transformers.generation.CompileConfig()
    # As on a card, where generate() compiles of its own accord.
    config._compile_all_devices = True
    how = {"cache_implementation": "static", "compile_config": config}
    ids = torch.randint(3, 120, (1, 5))
    generated(model, ids, **how)
    assert asked.pop() is model and not asked
    with stream(model, size_of(model) // 4):
        generated(model, ids, **how)
        assert not asked
    generated(model, ids, **how)
    assert asked == [model]


PROGRAM = """
import sys, torch, transformers
from transformers.generation import GenerationMixin

# What the card computes is not known here, so these are counted and summed on the host.
left, cumsum = [0], torch.Tensor.cumsum
def unfinished(self, *args, **kwargs):
    left[0] -= 1
    return left[0] >= 0
GenerationMixin._has_unfinished_sequences = unfinished
torch.Tensor.cumsum = lambda self, *args, **kwargs: cumsum(self.cpu(), *args, **kwargs).to(self.device)

config = transformers.LlamaConfig(hidden_size=512, intermediate_size=2048, num_hidden_layers=3, num_attention_heads=8, vocab_size=2000)
model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
model.to("cuda")
ids = torch.zeros(2, 5, dtype=torch.long, device=model.device)
for how in ({}, {"use_cache": False}, {"cache_implementation": "static"}, {"do_sample": True, "top_k": None}):
    for _ in range(2):
        left[0] = 6
        print(tuple(model.generate(ids, max_new_tokens=6, pad_token_id=0, **{"do_sample": False, **how}).shape))
import gapless
stream = gapless._stream.auto.stream_of(0)
figures = stream.stats()
print(figures["passes"], figures["copies"] > 0, figures["peak"] <= 12 << 20, figures["weights"] > 24 << 20)
"""


def test_a_program_that_knows_nothing_of_streams_generates_to_its_end(real, command, tmp_path):
    """No stop(): the interpreter ends with weights that stream."""
    program = tmp_path / "generate.py"
    program.write_text(PROGRAM)
    words = [command, "run", "--stream-weights", "12MiB", "--", sys.executable, program]
    done = real.start(words, GAPLESS_LIBRARY=real.library, PYTHONPATH=None, GAPLESS_CARD=str(PACKAGE / "cards" / "h200.card"))
    assert done.code == 0, done.out + done.err
    assert done.lines() == 8 * ["(2, 11)"] + ["48 True True True"]
