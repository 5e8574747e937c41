"""Passes of streamed models in which something fails: after each fault the runner is at rest, the next pass gives the
resident outputs bit for bit, and nothing is left on the card, pinned or locked.

Interrupts come at every place where Python can deliver one: after each call, at each start of a function and each turn
of a loop, in Gapless's own lines. `Interrupt` counts these places, so a seed chooses the states of the runner that a
pass goes through, and the test needs no luck with timing."""

import copy
import dis
import faulthandler
import functools
import gc
import os
import random
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import gapless._stream  # noqa: E402
from gapless import GaplessError  # noqa: E402
from gapless._stream import api, calls, ending  # noqa: E402
from stream_twin import Copy, stream  # noqa: E402
from test_stream import Adapted, Block, Changing, Language, rows, tokens  # noqa: E402

torch.set_num_threads(1)

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="the table of handlers is that of Python 3.11")
FOLDER = os.path.dirname(gapless._stream.__file__)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(api, "_SMALL", 1 << 10)
    torch.manual_seed(0)
    # Against a wait that never ends.
    faulthandler.dump_traceback_later(280, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()
    sys.settrace(None)


@functools.cache
def places_of(code):
    """The offsets of a function at which an interrupt that came in the instruction before is handled as if it came
    here: instructions after a call, after the start, or at the begin of a turn, under the same handler."""
    table = dis._parse_exception_table(code)

    def handler(offset):
        return next((entry.target for entry in table if entry.start <= offset < entry.end), None)

    found, before = {}, None
    for one in dis.get_instructions(code):
        pairs = [(before, one.offset)] if before is not None and before.opname in ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME") else []
        if "JUMP_BACKWARD" in one.opname:
            pairs.append((one, one.argval))
        for since, offset in pairs:
            if handler(since.offset) == handler(offset):
                found.setdefault(offset, set()).add(since.offset)
        before = one
    return found


class Interrupt:
    """Raises KeyboardInterrupt at the given place of those that the block comes to; None only counts them."""

    def __init__(self, at=None):
        self.at, self.count, self.where = at, 0, None

    def __enter__(self):
        sys.settrace(self._called)
        return self

    def __exit__(self, *error):
        sys.settrace(None)

    def _called(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        places, last = places_of(frame.f_code), None

        def step(frame, event, arg):
            nonlocal last
            if event == "opcode":
                offset = frame.f_lasti
                if last in places.get(offset, ()):
                    self.count += 1
                    if self.count == self.at:
                        self.where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"
                        raise KeyboardInterrupt
                last = offset
            return step

        return step


class Broken(Exception):
    pass


def at_rest(streamed, between=False):
    """No call is under way, no lock is held, nothing of ours is on, and what is counted is what is there."""
    runner = streamed._runner
    assert not runner.local.stack and not runner.passes and not runner.local.is_leaving
    # A backward pass that fails tells no one: it is ended with the next pass.
    if runner._back.run is None and not runner._is_changing:
        assert not any(item.users for item in runner.items)
        assert all(item.wanted == 0 or (between and item.wanted > 0) for item in runner.items)
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
    assert not torch.is_inference_mode_enabled()
    free = []

    def take():
        free.append(runner._lock.acquire(timeout=60))
        runner._lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert free == [True]
    account = runner.account
    account.look()
    assert account.used <= account.budget
    # After an interrupt outside of a pass, the next call repairs.
    assert runner._is_changing or account._now == sum(item.nbytes for item in runner.items if item.storage is not None)


def marks():
    return [one for one in gc.get_objects() if type(one) is Copy]


class Bench:
    """A model, its resident twin, and a stream; `other` shares the stream and may be deleted."""

    def __init__(self, kind, inputs, share, between, chance, is_trained=False):
        # Other tests of this process may have left theirs. They are held, so that none of ours gets the id of one.
        self.marks_before = marks()
        self.model = kind() if is_trained else kind().requires_grad_(False)
        self.resident, self.inputs, self.chance, self.between, self.is_trained = copy.deepcopy(self.model), inputs, chance, between, is_trained
        size = sum(tensor.nbytes for tensor in (*self.model.parameters(), *self.model.buffers()))
        self.other = nn.Sequential(Block(), Block()).requires_grad_(False)
        self.streamed = stream([self.model, self.other], int(size * share), watch=False, between=between, seed=chance.randrange(99))
        self.runner, self.twin = self.streamed._runner, self.streamed.twin
        self.points = 0

    def run(self, model):
        state = copy.deepcopy(getattr(model, "calls", None))
        try:
            if not self.is_trained:
                with torch.no_grad():
                    return [model(self.x)]
            loss = model(self.x)
            loss.backward()
            return [loss, *(tensor.grad for tensor in model.parameters() if tensor.grad is not None)]
        finally:
            if state is not None:
                # Both twins choose the same blocks.
                model.calls = state
            if self.is_trained:
                model.zero_grad()

    def check(self):
        """The next pass is right; now and then one after writes by the program."""
        at_rest(self.streamed, self.between)
        if self.chance.random() < 0.4:
            names = [name for name, tensor in self.model.named_parameters() if tensor.dim() > 1]
            name, kind = self.chance.choice(names), self.chance.randrange(2 if self.between else 3)
            for model in (self.model, self.resident):
                tensor = model.get_parameter(name)
                with torch.no_grad():
                    (tensor if kind == 0 else tensor.detach() if kind == 1 else tensor.data).mul_(0.75)
        if hasattr(self.model, "calls"):
            self.model.calls = self.resident.calls = self.chance.randrange(1000)
        mine, theirs = self.run(self.model), self.run(self.resident)
        assert len(mine) == len(theirs) and all(torch.equal(a, b) for a, b in zip(mine, theirs))
        del mine
        at_rest(self.streamed, self.between)
        assert self.runner._back.run is None and not self.runner._is_changing

    def fault(self, kind):
        """A pass with a fault; True if it raised. A pass that ends in spite of it is right."""
        self.x = self.inputs()
        error = None
        try:
            mine = getattr(self, kind)()
        except (Broken, KeyboardInterrupt, MemoryError, GaplessError) as raised:
            error = type(raised)
        else:
            if mine is not None:
                assert all(torch.equal(a, b) for a, b in zip(mine, self.run(self.resident)))
        return error is not None

    def _at(self):
        if not self.points:
            with Interrupt() as counted:
                self.run(self.model)
            self.points = counted.count
            assert self.points > 200
        return self.chance.randint(1, self.points)

    # ---- the faults ----

    def interrupt(self):
        with Interrupt(self._at()):
            return self.run(self.model)

    def two_interrupts(self):
        """The second one while the first is handled."""
        at, left = self._at(), [self.chance.choice((1, 2, 2, 2))]
        plain, again = self.runner.leave, Interrupt(self.chance.randint(1, 40))

        def leave(*args):
            if sys.gettrace() is None and left[0]:
                left[0] -= 1
                again.count = 0
                sys.settrace(again._called)
            return plain(*args)

        self.runner.leave = leave
        try:
            with Interrupt(at):
                return self.run(self.model)
        finally:
            sys.settrace(None)
            del self.runner.leave
            calls.settle(self.runner)

    def _hooked(self, do, is_after=False):
        module = self.chance.choice([one for one in self.model.modules() if isinstance(one, (Block, nn.Linear, nn.LayerNorm))])
        handle = (module.register_forward_hook if is_after else module.register_forward_pre_hook)(do)
        try:
            return self.run(self.model)
        finally:
            handle.remove()

    def block_fails(self):
        def fail(*args):
            raise self.chance.choice((Broken, MemoryError))

        return self._hooked(fail, self.chance.random() < 0.5)

    def card_is_full(self):
        """From some moment of the pass on there is no memory for copies."""
        self.twin.refusing = self.chance.choice((0.2, 0.7, 1.0))
        try:
            return self.run(self.model)
        finally:
            self.twin.refusing = 0.0

    def _patched(self, name, do):
        plain, left = getattr(self.twin, name), [self.chance.randint(1, 12)]

        def patched(*args):
            left[0] -= 1
            return do(plain, args) if left[0] == 0 else plain(*args)

        setattr(self.twin, name, patched)
        try:
            return self.run(self.model)
        finally:
            delattr(self.twin, name)

    def copy_fails(self):
        def fail(plain, args):
            raise GaplessError("the driver refuses")

        return self._patched(self.chance.choice(("bring", "gate", "take_back", "stream")), fail)

    def pressure(self):
        """Another request needs room while a pass is under way, in our own allocation or in the program's."""

        def press(plain, args):
            ending.relieve(self.runner, 1 << 20)
            return plain(*args)

        def ask(*args):
            ending.relieve(self.runner, 1 << 20)

        return self._patched("allocate", press) if self.chance.random() < 0.5 else self._hooked(ask)

    def other_thread(self):
        """A pass of another thread fails while one of this thread is under way."""
        failed = []

        def work():
            def fail(*args):
                raise Broken

            handle = self.other[1].register_forward_pre_hook(fail)
            try:
                with torch.no_grad():
                    self.other(rows())
            except Broken:
                failed.append(True)
            handle.remove()

        def start(*args):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

        found = self._hooked(start)
        assert failed or isinstance(self.model, Changing)
        return found

    def deleted(self):
        """A model of the stream goes while another one's pass is under way; another one takes its place."""
        with torch.no_grad():
            self.other(rows())

        def delete(*args):
            self.other = None
            gc.collect()

        found = self._hooked(delete)
        self.other = nn.Sequential(Block(), Block()).requires_grad_(False)
        self.streamed.add(self.other)
        return found

    def moved(self):
        """An interrupt in a conversion."""
        with Interrupt(self.chance.randint(1, 300)):
            self.model.to(torch.float32)

    def looked_at(self):
        with Interrupt(self.chance.randint(1, 40)):
            self.streamed.stats()
            ending.relieve(self.runner, 1 << 10)

    def end(self):
        """All of it is gone with the stream."""
        weights = {name: tensor.clone() for name, tensor in self.resident.state_dict().items()}
        for _ in range(4):
            try:
                with Interrupt(self.chance.randint(1, 400)):
                    self.streamed.stop()
            except KeyboardInterrupt:
                continue
            break
        self.streamed.stop()
        assert all(torch.equal(value, weights[name]) for name, value in self.model.state_dict().items())
        assert calls.place_of(self.model) is None
        runner = self.runner
        # What the model has now is no weight of the stream's.
        assert runner.account._now == 0 and not any(item.held or item.storage is not None or item.host is not None for item in runner.items)
        if self.is_trained:
            # torch never frees a graph of which a hook for saved tensors raised, with what it refers to.
            return
        twin = self.twin
        del runner
        self.model = self.other = self.streamed = self.runner = None
        gc.collect()
        assert twin.live() == 0 and twin.pinned() == 0
        twin.ins.clear()
        twin.outs.clear()
        gc.collect()
        before = {id(one) for one in self.marks_before}
        assert [one for one in marks() if id(one) not in before] == [], "marks are left"


FAULTS = ("interrupt", "interrupt", "interrupt", "two_interrupts", "block_fails", "card_is_full", "copy_fails", "pressure", "other_thread", "deleted")
CASES = [
    (Language, tokens, 0.3, False, False, 60),
    (Language, tokens, 0.3, True, False, 40),
    (Language, tokens, 1.5, False, False, 30),
    (Changing, rows, 0.5, False, False, 40),
    (Changing, rows, 0.5, True, False, 40),
    (functools.partial(Adapted, depth=3), tokens, 0.6, False, True, 40),
]


@pytest.mark.parametrize("kind, inputs, share, between, is_trained, count", CASES)
def test_after_each_fault_the_next_pass_is_right_and_nothing_is_left(kind, inputs, share, between, is_trained, count):
    """Two passes for each fault: 500 in all."""
    chance = random.Random(11)
    bench = Bench(kind, inputs, share, between, chance, is_trained)
    raised = dict.fromkeys((*FAULTS, "moved", "looked_at"), 0)
    for number in range(count):
        name = (*FAULTS, "moved", "looked_at")[number % (len(FAULTS) + 2)]
        raised[name] += bench.fault(name)
        bench.check()
        if number % 10 == 9:
            gc.collect()
            assert bench.twin.live() == bench.runner.account.used
            held = {id(item.host) for item in bench.runner.items if item.host is not None}
            assert bench.twin.pinned() == len(held)
    assert raised["interrupt"] and raised["two_interrupts"], raised
    bench.end()
