"""Values that steer a program over a card that stores none: however torch reads them, they are those of a GPU.

Each program asserts what a GPU answers. It is estimated, so that the assertions run over the card."""

MIB = 1 << 20


def test_choices_among_words_are_none_that_end_a_text(script):
    program = """
        import torch
        for words in (1000, 32000, 50257):
            for beams in range(1, 13):
                scores = torch.nn.Linear(1, beams * words).cuda().weight.detach().t().repeat(2, 1)
                for chosen in (scores.topk(2 * beams).indices, torch.multinomial(scores.exp(), 2 * beams), scores.argmax(-1)):
                    assert bool((chosen % words > 3).all()) and bool((chosen % words < words - 1).all()), (words, beams)
    """
    code, _, err = script(program)
    assert code == 0, err


def test_numbers_that_torch_reads_itself_are_the_true_ones(script):
    program = """
        import torch, torch.nn.functional as F
        n, sides = torch.tensor(3, device="cuda"), torch.tensor([6, 8], device="cuda")
        x = torch.zeros(9, 8, device="cuda")
        # Bounds of slices.
        assert x[:n].shape == (3, 8) and x[n:, : n - 1].shape == (6, 2) and x[:, : sides.max()].shape == (9, 8)
        x[:n] = 1
        # Sizes and counts.
        assert x.view(sides[0] // 2, -1).shape == (3, 24) and torch.zeros(2, 1, device="cuda").expand(2, n).shape == (2, 3)
        assert torch.zeros(2, device="cuda").repeat(n).shape == (6,) and [len(part) for part in x.split(n)] == [3, 3, 3]
        assert F.interpolate(torch.zeros(1, 1, 3, 4, device="cuda"), size=(sides[0], sides[1])).shape == (1, 1, 6, 8)
        assert torch.randint(0, n - 2, (4,), device="cuda").tolist() == [0] * 4 and torch.zeros(*sides, device="cuda").shape == (6, 8)
        # A mask that is smaller than what it chooses from.
        mask = torch.tensor([1, 0, 1] * 3, device="cuda").bool()
        assert x.masked_select(mask[:, None]).shape == (48,) and torch.masked_select(x, mask[:, None]).view(-1, 8).shape == (6, 8)
        # What the host gets of the card.
        here = torch.empty(2, dtype=torch.int64).copy_(sides)
        there = torch.zeros(2, dtype=torch.int64)
        there[:] = sides
        assert here.tolist() == there.tolist() == [6, 8]
        # torch's encoders leave out the padding where a mask allows it, and ask the card.
        padding = torch.arange(4, device="cuda")[None] < torch.tensor([[4], [2]], device="cuda")
        hidden = torch.nn.Linear(8, 8).cuda()(torch.zeros(2, 4, 8, device="cuda"))
        assert torch._nested_tensor_from_mask_left_aligned(hidden, padding)
        assert torch._nested_tensor_from_mask(hidden, padding).numel() == 6 * 8
        assert not torch._nested_tensor_from_mask_left_aligned(hidden, padding.flip(1))
        assert torch.zeros(3).pin_memory().is_pinned() and not torch.zeros(3).is_pinned()
    """
    code, found, err = script(program)
    assert code == 0 and found["reads"] == [], (err, found.get("reads"))


def test_values_follow_tensors_wherever_they_go(script):
    program = """
        import copy, io, torch
        model = torch.nn.Module()
        model.register_buffer("mask", torch.tensor([1, 0, 1, 1]).bool())
        model.register_buffer("count", torch.tensor(5))
        model = model.cuda()
        twin = copy.deepcopy(model)
        assert twin.mask.sum().item() == 3 and torch.zeros(4, 7, device="cuda")[twin.mask].shape == (3, 7)
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        assert torch.load(file)["count"].item() == 5
        file.seek(0)
        loaded = torch.load(file, map_location="cuda")
        assert loaded["mask"].tolist() == [True, False, True, True] and loaded["count"].item() == 5
        counts = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in range(2)]
        torch._foreach_add_(counts, 2)
        torch._foreach_mul_(counts, 3)
        assert [count.item() for count in counts] == [6, 6]
        out = torch.zeros(3, dtype=torch.int64, device="cuda")
        torch.add(torch.arange(3, device="cuda"), 1, out=out)
        assert out.tolist() == [1, 2, 3]
        out.data = torch.arange(4, device="cuda")
        assert out.tolist() == [0, 1, 2, 3]
        # An optimizer that goes on from a file divides by what it counted.
        layer = torch.nn.Linear(8, 8).cuda()
        for again in range(2):
            optimizer = torch.optim.AdamW(layer.parameters())
            if again:
                file.seek(0)
                optimizer.load_state_dict(torch.load(file, map_location="cuda"))
            layer(torch.zeros(2, 8, device="cuda")).sum().backward()
            optimizer.step()
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
        assert next(iter(optimizer.state.values()))["step"].item() == 2
    """
    code, found, err = script(program)
    assert code == 0 and found["reads"] == [], (err, found.get("reads"))


def test_what_is_lost_is_said_and_floats_that_are_not_known_can_be_divided_by(script):
    program = """
        import math, torch
        weight = torch.nn.Linear(4, 4).cuda().weight
        known = torch.zeros(4, dtype=torch.int64, device="cuda")
        torch.argmax(weight, 1, out=known)
        known.tolist()
        error = weight.square().mean()
        print(10 * math.log10(1 / error.item()))
        print(-math.log(float(error)), [1 / number for number in weight.abs()[0].tolist()])

        @torch.jit.script
        def length(x: torch.Tensor) -> int:
            return int(x.sum().item())

        length(torch.arange(3, device="cuda"))
    """
    code, found, err = script(program)
    assert code == 0, err
    functions = {row["function"] for row in found["reads"]}
    assert {"tolist", "item", "code outside of Python"} <= functions, found["reads"]


def test_large_weights_of_the_host_take_no_memory_there(script):
    program = """
        import torch
        from torch import nn

        class Experts(nn.Module):
            def __init__(self):
                super().__init__()
                self.up = nn.Parameter(torch.randn(16, 4096, 8192) * 0.02)
                self.down = nn.Parameter(torch.zeros(16, 8192, 4096))
                self.scale = nn.Parameter(torch.full((16, 4096, 2048), 0.5).clamp(max=0.4).to(torch.bfloat16))

        model = Experts().cuda()
        assert model.up.dtype == torch.float32 and model.scale.shape == (16, 4096, 2048)
        # Of a slice of such a tensor nothing is known, and of others everything.
        data = torch.rand(1 << 26)
        assert torch.ones(1 << 20)[:8].to("cuda").tolist() == [1.0] * 8
        data[:8].to("cuda").tolist()
    """
    code, found, err = script(program)
    assert code == 0, err
    assert found["peak_allocated"] >= 2 * 16 * 4096 * 8192 * 4 + 16 * 4096 * 2048 * 2
    assert found["host_memory"] < 2 << 30, found["host_memory"]
    assert [row["function"] for row in found["reads"]] == ["tolist"]


def test_a_program_finds_its_own_peaks(script):
    program = """
        import torch
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            large = torch.empty((4 - step) << 26, dtype=torch.uint8, device="cuda")
            model(torch.zeros(8, 64, device="cuda")).sum().backward()
            optimizer.step()
            del large
        assert 256 << 20 <= torch.cuda.max_memory_allocated() < 400 << 20
        assert torch.cuda.memory_stats()["reserved_bytes.all.peak"] == torch.cuda.max_memory_reserved() >= 256 << 20
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    """
    code, found, err = script(program)
    assert code == 0 and found["peak_allocated"] >= 256 * MIB, err


def test_the_batch_is_there_while_the_optimizer_steps(bench):
    program = """
        import gapless, torch
        answer = gapless.estimate(lambda: torch.nn.Linear(1024, 1024), batch=lambda device, dtype: torch.zeros(1 << 16, 1024, device=device)[:8],
                                  loss=lambda model, x: model(x).sum(), precision="fp32")
        assert all(phase["peak_allocated"] >= 256 << 20 for phase in answer.phases if phase["name"] == "optimizer"), answer.phases
    """
    done = bench.python(program, LD_PRELOAD=None, LD_LIBRARY_PATH=None, GAPLESS_CARD_LIBRARIES=str(bench.standin), GAPLESS_LIBRARY=None)
    assert done.code == 0, done.out + done.err
