"""Values that are known stay so on every way that a program can take them: views, autograd, C++, other operators.

Each program asserts what a GPU answers. It is estimated, so that the assertions run over the card.
"""

from pathlib import Path

OPERATORS = Path(__file__).resolve().parent / "programs" / "operators.py"


def test_values_belong_to_memory(script):
    program = """
        import torch
        x = torch.tensor([1, 2, 3, 4], device="cuda")
        # What is written into a part is seen by the whole, and by every other view.
        for whole in (torch.zeros(5, dtype=torch.int64, device="cuda"), torch.empty(5, dtype=torch.int64, device="cuda")):
            torch.cumsum(x, 0, out=whole[1:])
            whole[0] = 7
            assert whole.tolist() == [7, 1, 3, 6, 10] and whole.view(5, 1)[3:].flatten().tolist() == [6, 10]
            whole.t().neg_()
            assert whole.sum().item() == -27 and whole[::2].tolist() == [-7, -3, -10]
        table = torch.zeros(3, 4, dtype=torch.int64, device="cuda")
        table[1] = x
        table.T[0].add_(5)
        table.diagonal().fill_(9)
        assert table.tolist() == [[9, 0, 0, 0], [6, 9, 3, 4], [5, 0, 9, 0]]
        torch.add(x, 1, out=table[2])
        assert table[2].tolist() == [2, 3, 4, 5]
        values, places = torch.empty(4, dtype=torch.int64, device="cuda"), torch.empty(4, dtype=torch.int64, device="cuda")
        torch.sort(x, descending=True, out=(values, places))
        assert values.tolist() == [4, 3, 2, 1] and places.tolist() == [3, 2, 1, 0]
        # Another type over the same bytes, and an object of its own over the same memory.
        assert torch.tensor([1.0], device="cuda").view(torch.int32).item() == 0x3F800000
        assert torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x)).tolist() == [1, 2, 3, 4]
        assert x.as_strided((2, 2), (1, 2)).tolist() == [[1, 3], [2, 4]] and x.detach().data.unfold(0, 2, 1).tolist() == [[1, 2], [2, 3], [3, 4]]
        complex = torch.tensor([1 + 2j], device="cuda")
        assert complex.conj().imag.item() == -2 and complex.imag.item() == 2
        # Sizes that hang on values are those of a card.
        assert (x > 1).nonzero().max().item() == 3 and (x > 9).nonzero().shape == (0, 1) and torch.unique(x % 2).tolist() == [0, 1]
        # Memory that another tensor gets knows nothing of who had it before.
        del x
        score = torch.nn.Linear(4, 4).cuda().weight.sign().long()
        kept = [score.clone() for _ in range(3)]
        kept[0].tolist()
    """
    code, found, err = script(program)
    assert code == 0, err
    assert [row["function"] for row in found["reads"]] == ["tolist"], found["reads"]


def test_threads_of_the_program_know_what_it_knows(script):
    program = """
        import threading, torch
        from concurrent.futures import ThreadPoolExecutor
        from torch.utils.data import DataLoader
        lengths, seen = torch.tensor([3, 5, 7], device="cuda"), []

        class Own(threading.Thread):
            def run(self):
                seen.append(int(lengths.sum()))

        threads = [Own(), threading.Thread(target=lambda: seen.append(int(lengths.max()))), threading.Timer(0.0, lambda: seen.append(int(lengths[1])))]
        for thread in threads:
            thread.start()
            thread.join()
        assert seen == [15, 7, 5], seen
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(lambda size: torch.arange(size, device="cuda").sum().item(), [3, 4])) == [3, 6]
        # A thread of a thread; and what a thread learns, the program knows.
        def outer():
            inner = threading.Thread(target=lambda: lengths.add_(1))
            inner.start()
            inner.join()
        thread = threading.Thread(target=outer)
        thread.start()
        thread.join()
        assert lengths.tolist() == [4, 6, 8]
        assert sum(int(batch.cuda().sum()) for batch in DataLoader(torch.arange(6), 2, pin_memory=True)) == 15
    """
    code, found, err = script(program)
    assert code == 0 and found["reads"] == [], (err, found.get("reads"))


def test_what_is_known_in_part_is_known_in_that_part(script):
    program = """
        import torch
        weight = torch.nn.Linear(8, 8).cuda().weight
        unknown = weight.sign().long()[0]
        text = torch.full((2, 12), -1, device="cuda")
        text[:, :8] = unknown
        text[1, 9:] = torch.arange(3, device="cuda")
        assert text[:, 8:].tolist() == [[-1] * 4, [-1, 0, 1, 2]]
        longer = torch.cat([text, torch.ones(2, 1, dtype=torch.int64, device="cuda")], 1)
        assert longer[:, 8:].sum().item() == -4 + 2 + 2 and longer.gather(1, torch.tensor([[9], [11]], device="cuda")).tolist() == [[-1], [2]]
        # Logic needs no more of its inputs than decides it; numbers of a model are no infinities.
        scores = weight.exp().sum(1)
        finished = torch.zeros(8, dtype=torch.bool, device="cuda")
        assert not (finished & (scores > 1)).any() and (~finished | (scores > 1)).all()
        worst = torch.where(finished, scores, torch.full((8,), -1e9, device="cuda"))
        assert bool((scores > worst).any()) and bool((scores < float("inf")).all()) and not bool((scores.masked_fill(finished, 1) == -float("inf")).any())
    """
    code, found, err = script(program)
    assert code == 0 and found["reads"] == [], (err, found.get("reads"))


def test_the_backward_pass_knows_what_the_forward_pass_knew(script):
    program = """
        import torch
        from torch.utils.checkpoint import checkpoint

        class Solve(torch.autograd.Function):
            @staticmethod
            def forward(ctx, w, times):
                doubled = times * 2
                ctx.save_for_backward(times, doubled, w)
                ctx.mark_non_differentiable(doubled)
                return w * 2, doubled

            @staticmethod
            def backward(ctx, gradient, _):
                times, doubled, w = ctx.saved_tensors
                assert bool((times[1:] > times[:-1]).all()) and times.tolist() == [0.0, 0.5, 1.0] and doubled.tolist() == [0.0, 1.0, 2.0]
                with torch.enable_grad():
                    assert torch.autograd.grad(w * doubled.sum(), w, torch.ones_like(w))[0].shape == w.shape
                    held.append(torch.arange(3, device="cuda").sum().item())
                return gradient * 2, None

        def part(w, mask):
            assert mask.tolist() == [True, False, True]
            held.append(w[mask].shape[0])
            return w * mask

        held = []
        w = torch.nn.Parameter(torch.randn(3, device="cuda"))
        mask = torch.tensor([True, False, True], device="cuda")
        w.register_hook(lambda gradient: held.append(int(mask.sum())))
        out, doubled = Solve.apply(w, torch.tensor([0.0, 0.5, 1.0], device="cuda"))
        assert doubled.tolist() == [0.0, 1.0, 2.0]
        (out.sum() + checkpoint(part, w, mask, use_reentrant=False).sum()).backward()
        assert sorted(held) == [2, 2, 2, 2, 3], held
        out, _ = Solve.apply(w, torch.tensor([0.0, 0.5, 1.0], device="cuda"))
        torch.autograd.grad(out.sum(), w)
    """
    code, found, err = script(program)
    assert code == 0 and found["reads"] == [], (err, found.get("reads"))


def test_code_below_python_reads_what_is_known(script):
    program = """
        import ctypes, torch
        lengths = torch.tensor([3, 5, 7], device="cuda") + 1
        # A library in C++ copies from the card itself.
        card, here = ctypes.CDLL("libgapless-card.so"), (ctypes.c_int64 * 2)()
        assert card.cudaMemcpy(here, ctypes.c_void_p(lengths.data_ptr() + 8), ctypes.c_size_t(16), 2) == 0
        assert list(here) == [6, 8]

        @torch.jit.script
        def longest(lengths: torch.Tensor) -> int:
            return int(lengths[1].item())

        assert longest(lengths) == 6
        # An operator of another library calls torch on its way.
        library = torch.library.Library("gaplesstest", "DEF")
        library.define("frames(Tensor x, Tensor lengths) -> Tensor")

        def frames(x, lengths):
            longest = torch.ops.aten.amax.default(lengths)
            assert torch.ops.aten._local_scalar_dense.default(longest) == 8 and int(torch.ops.aten.sum.default(lengths)) == 18
            return torch.ops.aten.new_zeros.default(x, [8])

        library.impl("frames", frames, "CUDA")
        assert torch.ops.gaplesstest.frames(torch.nn.Linear(4, 4).cuda().weight.detach(), lengths).shape == (8,)
    """
    code, found, err = script(program)
    assert code == 0 and found["reads"] == [], (err, found.get("reads"))


def test_tensors_on_two_devices_are_compared_as_on_a_card(script):
    program = """
        import torch
        here = torch.tensor([1, 2])
        there = here.cuda()
        for question in (torch.equal, torch.allclose):
            try:
                question(here, there)
            except RuntimeError as error:
                assert "same device" in str(error)
            else:
                raise SystemExit("a card refuses")
        assert torch.equal(there.cpu(), here) and torch.equal(here.cuda(), there) and not torch.equal(there, there + 1)
        # A number without dimensions may come from the host.
        assert bool((there == torch.tensor(2)).any()) and bool((there * torch.tensor(3) == torch.tensor([3, 6], device="cuda")).all())
        # What was made of one thing in one way is taken to be equal.
        weight = torch.nn.Linear(4, 4).cuda().weight
        assert torch.equal(weight / 2, weight / 2)
    """
    code, found, err = script(program)
    assert code == 0 and [row["function"] for row in found["reads"]] in (["equal"], ["a check"]), (err, found.get("reads"))


def test_a_default_device_of_the_program_changes_nothing(script):
    program = """
        import torch
        torch.set_default_device("cuda")
        before = torch.cuda.memory_allocated()
        lengths = torch.tensor([3, 5])
        steps = torch.arange(lengths.max())
        mask = steps[None] < lengths[:, None]
        assert mask.sum().item() == 8 and mask.tolist()[0] == [True] * 3 + [False] * 2 and torch.zeros(2, 5)[mask].shape == (8,)
        table = torch.empty(4, dtype=torch.int64)
        table[:2], table[2:] = lengths, 7
        assert table.tolist() == [3, 5, 7, 7] and torch.cat([lengths, table]).argmax().item() in (3, 4, 5)
        score = torch.nn.Linear(8, 8).weight.detach()
        assert score.topk(2).indices.max().item() < 8 and not (score.mean() > 1) and bool((score.sum(1) > -1e9).all())
        # What runs beside the program takes nothing of the card.
        assert torch.cuda.memory_allocated() - before < 24 * 512 + (32 << 20)
        with torch.device("meta"):
            assert (lengths + 1).tolist() == [4, 6]
    """
    code, found, err = script(program)
    assert code == 0, err


def test_a_loop_that_waits_for_a_small_number_ends(script):
    program = """
        import torch
        weight = torch.nn.Linear(64, 64).cuda().weight.detach()
        rounds, residual = 0, weight.square().sum()
        while residual.sqrt() > 1e-6 and rounds < 5000:
            rounds, residual = rounds + 1, (weight @ weight).square().sum() * residual
        assert rounds < 5
        # A step of a solver is taken where its error is small, and the next one is longer.
        time, step = torch.zeros((), device="cuda"), torch.tensor(0.01, device="cuda")
        while time < 1:
            error = (weight * step).norm() / 8
            accepted = error <= 1
            factor = torch.clamp(0.9 / error**0.2, 0.2, 10.0)
            time = torch.where(accepted, time + step, time)
            step = step * factor
            rounds += 1
        assert rounds < 100
    """
    code, found, err = script(program)
    assert code == 0, err
    assert "__bool__" in {row["function"] for row in found["reads"]} and found["choices"] == []


def test_every_operator_that_makes_whole_numbers_makes_those_of_the_cpu(script):
    """Of torch's own list of operators, with its own examples: as a function, into a part of a tensor, and in place.

    All of them: `gapless estimate --until-stable python/tests/programs/operators.py`.
    """
    code, found, err = script(OPERATORS.read_text(), "--until-stable", arguments=["9"])
    assert code == 0, err
    wrong = [line for line in err.splitlines() if line.startswith("WRONG")]
    ran = next(line for line in err.splitlines() if line.startswith("RAN"))
    assert int(ran.split()[1]) > 150 and not wrong, (ran, wrong)
