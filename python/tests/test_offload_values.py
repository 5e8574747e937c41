"""Offload over real numbers: losses and gradients of real models are the same bits, however tensors move, and torch's
own checks still work."""

import gc
import random
import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from gapless._offload_plan import Profile, choose  # noqa: E402
from offload_twin import Twin, TwinOffload  # noqa: E402

# Tiny tensors: threads only wait for each other.
torch.set_num_threads(1)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))))

    def forward(self, x):
        return self.layers(x).square().mean()

    def inputs(self):
        return torch.randn(32, 64)


class Conv(nn.Module):
    """Batch norm, activations in place, pooling with indices, a residual."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1) for i in range(5))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(5))

    def forward(self, x):
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            y = F.relu_(norm(conv(x)))
            x = y if i == 0 else x + y
        x = F.max_pool2d(x, 2)
        return F.dropout(x.flatten(1), 0.2).logsumexp(1).mean()

    def inputs(self):
        return torch.randn(4, 3, 16, 16).to(memory_format=torch.channels_last)


class Attention(nn.Module):
    """Views of one storage, transposes, dropout, expanded masks, tied weights, cross entropy; every second block is
    checkpointed."""

    def __init__(self, is_checkpointed=False):
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.embed = nn.Embedding(50, 32)
        self.qkv = nn.ModuleList(nn.Linear(32, 96) for _ in range(4))
        self.out = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.norm = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))

    def block(self, x, i):
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv[i](self.norm[i](x)).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2)) / 8**0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1).expand_as(scores)
        shares = F.dropout(scores.masked_fill(mask, float("-inf")).softmax(-1), 0.1)
        return x + self.out[i]((shares @ v).transpose(1, 2).flatten(2))

    def forward(self, tokens):
        x = self.embed(tokens)
        for i in range(4):
            x = checkpoint(self.block, x, i, use_reentrant=False) if self.is_checkpointed and i % 2 else self.block(x, i)
        return F.cross_entropy((x @ self.embed.weight.t())[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    def inputs(self):
        return torch.randint(0, 50, (4, 24))


class Complex(nn.Module):
    """Other types, lazy conjugates, views as another type, slices, a storage that two versions share."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 48, dtype=torch.float64))

    def forward(self, x):
        y = torch.view_as_complex((x @ self.weight).unflatten(-1, (24, 2)))
        z = torch.fft.fft(y) * y.conj()
        real = torch.view_as_real(z)[..., 0]
        rows = [real[i::4].exp() for i in range(4)]
        wide = torch.cat(rows).tanh()
        wide = wide.clone()
        half = wide * 2
        half.mul_(0.5)
        return (half.sin() * wide.half().float()).sum()

    def inputs(self):
        return torch.randn(40, 48, dtype=torch.float64) * 0.01


MODELS = {"mlp": Mlp, "conv": Conv, "attention": Attention, "checkpointed": lambda: Attention(True), "complex": Complex}


def train(make, scope=None, steps=5, outside=True, accumulate=1, double=False):
    """Losses and gradients of some steps, as bytes."""
    torch.manual_seed(1)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for _ in range(steps):
        for _ in range(accumulate):
            x = model.inputs()
            if scope is None:
                loss = model(x)
                loss.backward(retain_graph=double)
            elif outside:
                with scope:
                    loss = model(x)
                loss.backward(retain_graph=double)
            else:
                with scope:
                    loss = model(x)
                    loss.backward(retain_graph=double)
            if double:
                loss.backward()
            found.append(loss.detach().numpy().tobytes())
            del loss
        found += [p.grad.numpy().tobytes() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return found


def most(make):
    """The bytes of a step's saved tensors if all stay."""
    twin = Twin(1 << 60)
    train(make, TwinOffload(twin), steps=1)
    assert twin.log == []
    return twin.most


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("share", [0.05, 0.35, 0.7])
def test_losses_and_gradients_are_the_same_bits(name, share):
    make = MODELS[name]
    expected = train(make)
    capacity = int(most(make) * share)
    for seed, haste in enumerate((0.0, 0.2, 0.9, 1.0)):
        twin = Twin(capacity, seed, haste)
        scope = TwinOffload(twin, in_flight=capacity // 8)
        assert train(make, scope, outside=seed % 2 == 0) == expected, (seed, haste)
        stats = scope.stats()
        assert stats["tensors_out"] >= stats["steps"] == 5 and stats["tensors_back"] > 0, stats
        assert stats["planned_steps"] == 4, stats
        settled(scope, twin)


@pytest.mark.parametrize("name", ["mlp", "attention"])
def test_a_graph_can_be_walked_twice(name):
    expected = train(MODELS[name], double=True)
    twin = Twin(most(MODELS[name]) // 4, 3)
    scope = TwinOffload(twin)
    assert train(MODELS[name], scope, double=True) == expected
    stats = scope.stats()
    # A tensor leaves once, and may come back several times.
    assert stats["tensors_back"] > stats["tensors_out"] > 0, stats
    settled(scope, twin)


def test_gradients_of_gradients_are_the_same():
    def run(scope):
        torch.manual_seed(0)
        x = torch.randn(40, 40, requires_grad=True)
        w = torch.randn(40, 40, requires_grad=True)
        with scope:
            y = ((x @ w).tanh() @ w).sigmoid().sum()
            first = torch.autograd.grad(y, (x, w), create_graph=True)
            (first[0].square().sum() + first[1].sin().sum()).backward()
        return [t.detach().numpy().tobytes() for t in (*first, x.grad, w.grad)]

    twin = Twin(20000, 5)
    scope = TwinOffload(twin)
    assert run(scope) == run(torch.enable_grad())
    assert scope.stats()["tensors_out"] > 0
    settled(scope, twin)


def test_steps_of_several_kinds_that_take_turns_are_planned_too():
    torch.manual_seed(0)
    models = [Mlp(), Mlp(), Attention()]
    models[1].layers = models[1].layers[:9]
    twin = Twin(60000, 2)
    scope = TwinOffload(twin)
    for _ in range(4):
        for model in models:
            with scope:
                model(model.inputs()).backward()
    stats = scope.stats()
    assert stats["steps"] == 12 and stats["planned_steps"] >= 7, stats
    settled(scope, twin)


def test_several_forwards_before_backward_are_one_step():
    torch.manual_seed(0)
    model = Mlp()
    batches = [model.inputs() for _ in range(3)]
    sum(model(x) for x in batches).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    twin = Twin(80000, 4)
    scope = TwinOffload(twin)
    for _ in range(3):
        model.zero_grad()
        with scope:
            losses = [model(x) for x in batches]
        sum(losses).backward()
        del losses
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), expected))
    assert scope.stats()["steps"] == 3
    settled(scope, twin)


def test_threads_may_share_a_scopes_kind():
    torch.manual_seed(0)
    models = [Mlp() for _ in range(3)]
    batches = [model.inputs() for model in models]
    expected = []
    for model, x in zip(models, batches):
        model(x).backward()
        expected.append([p.grad.clone() for p in model.parameters()])
    twin = Twin(60000, 6)
    scope = TwinOffload(twin)
    wrong = []

    def work(at):
        own = TwinOffload(twin)
        own.keeper = own._own[0] = scope.keeper
        try:
            for _ in range(8):
                models[at].zero_grad()
                with own:
                    loss = models[at](batches[at])
                loss.backward()
                if not all(torch.equal(p.grad, g) for p, g in zip(models[at].parameters(), expected[at])):
                    wrong.append(at)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and scope.stats()["tensors_out"] > 0
    settled(scope, twin)


def test_nothing_moves_while_it_fits():
    twin = Twin(most(Mlp) * 2)
    scope = TwinOffload(twin)
    train(Mlp, scope)
    assert twin.log == [] and scope.stats()["bytes_out"] == 0


def test_the_oldest_leave_first_and_parameters_never():
    torch.manual_seed(0)
    # Each saves its own output: sizes tell which tensor left.
    twin = Twin(40 << 10, haste=1.0)
    scope = TwinOffload(twin, in_flight=0)
    weight = nn.Parameter(torch.randn(64, 64))
    buffer = torch.randn(64, 64)
    with scope:
        x = torch.randn(1, 64, requires_grad=True)
        y = x.expand(16, 64) @ weight * buffer[:16]
        sizes = []
        for rows in (16, 17, 18, 19, 20, 21, 22, 23):
            y = torch.cat([y, y[: max(0, rows - y.shape[0])]]).exp()
            sizes.append(y.untyped_storage().nbytes())
        loss = y.sum()
    out = [nbytes for what, nbytes in twin.log if what == "out"]
    assert out == sizes[: len(out)] and 0 < len(out) < len(sizes), (out, sizes)
    assert weight.untyped_storage().nbytes() not in out
    loss.backward()
    out, back = ([nbytes for what, nbytes in twin.log if what == way] for way in ("out", "back"))
    assert out == sizes[: len(out)] and back == out[::-1]


def test_views_share_a_storage_and_a_storage_moves_once():
    twin = Twin(1000, haste=1.0)
    scope = TwinOffload(twin)
    with scope:
        base = torch.randn(3, 20, 20, requires_grad=True).exp()
        a, b, c = base.unbind(0)
        out = (a @ b) * c + (b @ c.t()) * a
        del base, a, b, c
        out = out.exp()
        loss = (out * out).sum()
        del out
    assert sorted(nbytes for what, nbytes in twin.log if what == "out").count(4800) <= 1
    loss.backward()
    moved = [nbytes for _, nbytes in twin.log]
    assert moved.count(4800) == 2, "once there, once back"


def test_what_others_keep_stays():
    twin = Twin(1000, haste=1.0)
    scope = TwinOffload(twin)
    kept = []
    with scope:
        x = torch.randn(40, 40, requires_grad=True)
        for _ in range(5):
            x = x.exp()
            kept.append(x)
        loss = x.sum()
        assert twin.log == []
        del x
        kept.clear()
        # The next event sees that nothing refers to them any more.
        more = torch.randn(40, 40, requires_grad=True).exp()
    assert len(twin.log) == 5
    (loss + more.sum()).backward()


def test_a_small_window_into_something_large_stays():
    twin = Twin(1000, haste=1.0)
    with TwinOffload(twin):
        cache = torch.randn(100, 1000)
        window = cache[3:9]
        del cache
        loss = (torch.randn(6, 1000, requires_grad=True) * window).sum()
        del window
        torch.randn(40, 40, requires_grad=True).exp()
    assert [nbytes for _, nbytes in twin.log if nbytes == 400000] == []
    loss.backward()


@pytest.mark.parametrize("haste", [0.0, 1.0])
@pytest.mark.parametrize("capacity", [1, 1 << 40])
def test_a_change_in_place_is_an_error_or_harmless_never_wrong(haste, capacity):
    twin = Twin(capacity, haste=haste)
    scope = TwinOffload(twin)
    for step in range(3):
        x = torch.randn(40, 40, requires_grad=True)
        with scope:
            y = x.exp()
            z = y.sin()
            if step == 2:
                torch.randn(40, 40, requires_grad=True).exp()
            expected = y.detach() * y.detach().cos()
            y.mul_(2)
        try:
            z.sum().backward()
        except RuntimeError as error:
            assert "modified by an inplace operation: [torch.FloatTensor [40, 40]] is at version 1; expected version 0" in str(error)
        else:
            assert capacity == 1 and torch.equal(x.grad, expected)
        if capacity > 1:
            assert x.grad is None
        del y, z
    settled(scope, twin)


def test_small_tensors_are_checked_as_well():
    with TwinOffload(Twin(1), min_size="1GiB"):
        weight = nn.Parameter(torch.randn(4, 4))
        loss = (torch.randn(4, 4, requires_grad=True) @ weight).sum()
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="is at version 1; expected version 0"):
        loss.backward()


def test_a_forward_that_fails_leaves_nothing_behind():
    twin = Twin(10000, haste=0.1)
    scope = TwinOffload(twin)
    model = Mlp()
    for _ in range(3):
        with pytest.raises(ValueError), scope:
            x = model.layers(model.inputs())
            raise ValueError(x.shape)
        del x
        gc.collect()
        assert not scope._scopes
    settled(scope, twin)
    # Hooks are off again.
    before = len(twin.log)
    model(model.inputs()).backward()
    assert len(twin.log) == before


def test_graphs_that_are_dropped_half_way_leave_nothing_behind():
    rng = random.Random(0)
    for seed in range(8):
        twin = Twin(30000, seed, haste=0.3)
        scope = TwinOffload(twin)
        model = Mlp()
        for _ in range(6):
            with scope:
                loss = model(model.inputs())
            if rng.random() < 0.5:
                loss.backward()
            del loss
        settled(scope, twin)


def test_a_full_host_leaves_tensors_on_the_device_and_says_so():
    expected = train(Mlp)
    twin = Twin(1000, 1, host_limit=20000)
    scope = TwinOffload(twin)
    with pytest.warns(match="leaves tensors on the device: the twin has no more"):
        assert train(Mlp, scope) == expected
    stats = scope.stats()
    assert stats["refused"] > 0 and stats["tensors_out"] > 0
    settled(scope, twin)


def test_pressure_lets_go_of_what_is_missing():
    twin = Twin(1 << 40, haste=0.0)
    scope = TwinOffload(twin)
    with scope:
        x = torch.randn(40, 40, requires_grad=True)
        for _ in range(6):
            x = x.exp()
        loss = x.sum()
        del x
    assert twin.log == []
    before = twin.used()
    assert scope.keeper.pressed(6400 * 2) == 6400 * 2
    assert before - twin.used() == 6400 * 2 and len(twin.log) == 2
    assert scope.keeper.pressed(1 << 30) > 0
    loss.backward()
    settled(scope, twin)
    assert scope.keeper.pressed(5) == 0


def test_scopes_can_be_nested_and_off():
    outer, inner = Twin(1), Twin(1)
    scope = TwinOffload(inner)
    with TwinOffload(outer), scope, scope:
        torch.randn(40, 40, requires_grad=True).exp().exp().sum().backward()
    assert inner.log and not outer.log
    off = TwinOffload(inner, activations=False)
    inner.log.clear()
    with off:
        torch.randn(40, 40, requires_grad=True).exp().sum().backward()
    assert not inner.log


def settled(scope, twin):
    """Nothing of the steps is left, on the device or the host."""
    for _ in range(200):
        stats = scope.stats()
    for queue in twin.queues:
        while queue:
            queue[0].finish()
    stats = scope.stats()
    assert stats["tensors"] == stats["away_bytes"] == stats["leaving_bytes"] == stats["host_live"] == 0, stats
    assert not scope.keeper._ending and not scope.keeper._ahead_bytes and not scope.keeper._away_serials


# ---- the plan ----


def random_profile(rng):
    """A step as it could be: saved and needed again in reverse, what is in use follows from it."""
    profile = Profile(rng.randrange(100))
    sizes = [rng.randrange(1, 50) for _ in range(rng.randrange(1, 25))]
    used = profile.base
    for size in sizes:
        tensor = profile.save(size)
        event = profile.event(used + rng.randrange(30) + size)
        used += size
        profile.after[event] = used
        profile.free[tensor] = None if rng.random() < 0.1 else event
    for tensor in reversed(range(len(sizes))):
        event = profile.event(used + rng.randrange(30))
        profile.needed[tensor] = event
        used -= sizes[tensor]
        profile.after[event] = used
    return profile


def excess(profile, chosen, capacity, base):
    """By the definition: what each stretch uses without those that are away in it."""
    worst = 0
    for event, crest in enumerate(profile.before):
        away = sum(profile.sizes[t] for t in chosen if profile.free[t] is not None and profile.free[t] < event <= profile.needed[t])
        worst = max(worst, crest + base - profile.base - away - capacity)
    return worst


def test_a_plan_covers_every_moment_and_misses_none_of_its_tensors():
    rng = random.Random(7)
    tight = 0
    for _ in range(1500):
        profile = random_profile(rng)
        base = profile.base + rng.choice([0, 0, rng.randrange(40)])
        capacity = rng.randrange(10, max(profile.before) + 60)
        chosen = choose(profile, capacity, base)
        movable = {t for t, free in enumerate(profile.free) if free is not None}
        assert chosen <= movable
        # No plan does better than all that can be moved.
        least = excess(profile, movable, capacity, base)
        assert excess(profile, chosen, capacity, base) == least or least > 0
        if least == 0:
            tight += bool(chosen)
            for tensor in chosen:
                assert excess(profile, chosen - {tensor}, capacity, base) > 0, "one that is not missed"
        if excess(profile, set(), capacity, base) == 0:
            assert chosen == set()
    assert tight > 300


def test_a_plan_takes_the_earliest():
    profile = Profile(0)
    for size in (10, 10, 10, 10):
        tensor = profile.save(size)
        event = profile.event(10 * (tensor + 1))
        profile.free[tensor] = event
    for tensor in (3, 2, 1, 0):
        profile.needed[tensor] = profile.event(40 - 10 * (3 - tensor))
    assert choose(profile, 25, 0) == {0, 1}
    assert choose(profile, 25, 5) == {0, 1}
    assert choose(profile, 25, 10) == {0, 1, 2}
    assert choose(profile, 40, 0) == set()
