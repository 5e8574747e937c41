"""One copy of weights: share() and attach(), over the stand-in card. A page has the same bytes in both processes only
if both have it mapped, and a range that may only be read refuses writes."""

import pytest

from test_sharing import START

MODELS = """
import gapless

class Model(torch.nn.Module):
    def __init__(self, width=300, dtype=torch.float32, tied=True):
        super().__init__()
        self.embed = torch.nn.Embedding(5000, width, dtype=dtype)
        self.body = torch.nn.Sequential(*(torch.nn.Linear(width, width, dtype=dtype) for _ in range(6)))
        self.head = torch.nn.Linear(width, 5000, bias=False, dtype=dtype)
        if tied:
            self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.empty(17, dtype=dtype))
        self.register_buffer("angles", torch.empty(9), persistent=False)

def model_on(device, **options):
    with torch.device(device):
        return Model(**options)

def fill(model):
    for at, tensor in enumerate([*model.parameters(), *model.buffers()]):
        write(tensor, at)

READ = '''
with torch.device("meta"):
    model = Model()
attached = gapless.attach(it, model)
answer = [holds(tensor, at) for at, tensor in enumerate([*model.parameters(), *model.buffers()])]
'''
"""


@pytest.fixture
def share(real):
    def run(program, **environment):
        return real.passes(START + MODELS + program, **environment).lines()

    return run


def test_a_model_is_attached_without_a_copy_and_to_read(share):
    lines = share("""
reader = Reader()
gapless.enable()
model = model_on("cuda")
fill(model)
handle = gapless.share(model)
print(len(handle) < 80 and handle.isascii() and handle.isprintable())
assert all(reader.does(READ, handle))
print(reader.does("answer = card.device_used(), torch.cuda.memory_allocated()"))
# Tied weights are one parameter, and gradients are not asked for.
print(reader.does("answer = model.head.weight is model.embed.weight, any(p.requires_grad for p in model.parameters())"))
# A write there is refused and harms no other process; what the owner writes is seen.
print(reader.does('''
storage = model.embed.weight.untyped_storage()
answer = card.card_poke(storage.data_ptr(), b"x" * 64, 64), holds(model.embed.weight, 0)
'''), holds(model.embed.weight, 0))
write(model.embed.weight, 50)
print(reader.does("answer = holds(model.embed.weight, 50), holds(attached['body.0.weight'], 1)"))
# When the last tensor goes, the memory is unmapped there; the owner has it still.
reader.does("card.device_behind.restype = ctypes.c_uint64")
behind = "x = ctypes.c_uint64(); answer = card.device_behind(ctypes.c_uint64(it), ctypes.byref(x), ctypes.byref(x)) != 0"
addr = reader.does("answer = model.scale.data_ptr()")
print(reader.does(behind, addr))
reader.does("one = attached['scale']; del model, attached, storage; import gc; gc.collect()")
print(reader.does(behind, addr), reader.does("answer = list(one.shape)"))
reader.does("del one")
print(reader.does(behind, addr), holds(model.embed.weight, 50))
reader.end()
""")
    assert lines == ["True", "(0, 0)", "(True, False)", "(1, True) True", "(True, True)", "True", "True [17]", "False True"]


def test_the_reader_needs_no_allocator_of_ours_and_the_owner_may_be_killed(share):
    lines = share("""
reader, third, second, owner = Reader(is_gapless=False), Reader(), Reader(), Reader()
handle = owner.does("model = model_on('cuda'); fill(model); answer = gapless.share(model, name='killed-one')")
assert all(reader.does(READ, "killed-one"))
os.kill(owner.pid, signal.SIGKILL)
os.waitpid(owner.pid, 0)
print(reader.does("answer = [holds(tensor, at) for at, tensor in enumerate([*model.parameters(), *model.buffers()])]") == [True] * 15)
print(reader.does("answer = gapless.enabled()"))
# No other process can attach now, and the name is free again.
for text in (handle, "killed-one"):
    done, error = reader.ask("gapless.attach(it)", text)
    print(done, "has ended" in error)
second.does("x = torch.empty(9, device='cuda'); answer = gapless.share([x], name='killed-one')")
done, error = third.ask("y = torch.empty(9, device='cuda'); gapless.share([y], name='killed-one')")
print(done, 'another process shares "killed-one" already' in error)
print(reader.does("answer = list(gapless.attach('killed-one')['0'].shape)"))
second.does("gapless.unshare(gapless._share._offered.copy().popitem()[0])")
done, error = reader.ask("gapless.attach('killed-one')")
print(done, 'nobody shares "killed-one"' in error)
second.end()
third.end()
reader.end()
""")
    assert lines == ["True", "False", "False True", "False True", "False True", "[9]", "False True"]


def test_dicts_lists_views_and_empty_tensors_keep_their_shapes(share):
    lines = share("""
reader = Reader()
gapless.enable()
base = torch.empty(64, 32, device="cuda", dtype=torch.bfloat16)
write(base, 1)
tensors = {"base": base, "t": base.t(), "part": base[3:9, ::2], "scalar": torch.empty((), device="cuda"), "none": torch.empty(0, 4, device="cuda")}
handle = gapless.share(tensors)
got = "got = gapless.attach(it); answer = {name: (list(t.shape), list(t.stride()), t.storage_offset(), str(t.dtype)) for name, t in got.items()}"
print(reader.does(got, handle) == {name: (list(t.shape), list(t.stride()), t.storage_offset(), str(t.dtype)) for name, t in tensors.items()})
print(reader.does("answer = got['base'].untyped_storage().data_ptr() == got['part'].untyped_storage().data_ptr(), got.nbytes, holds(got['base'], 1)"))
print(reader.does("answer = list(gapless.attach(it))", gapless.share([base, base[1:]])), reader.does("answer = list(gapless.attach(it))", gapless.share(base)))
# A parameter on the GPU keeps its identity, and its old memory goes.
reader.does('''
model = torch.nn.Linear(32, 64, bias=False, device="cuda", dtype=torch.bfloat16)
before = model.weight
gapless.attach(it, model)
answer = None
''', gapless.share({"weight": base}))
print(reader.does("answer = model.weight is before, holds(model.weight, 1), torch.cuda.memory_allocated()"))
reader.end()
""")
    assert lines == ["True", "(True, 4100, True)", "['0', '1'] ['tensor']", "(True, True, 0)"]


def test_what_differs_is_named_and_the_model_is_as_it_was(share):
    lines = share("""
reader = Reader()
gapless.enable()
handle = gapless.share(model_on("cuda"))
loose = gapless.share({"weight": torch.empty(4, 4, device="cuda").t(), "bias": torch.empty(4, device="cuda")})
untied = gapless.share(model_on("cuda", tied=False))
def tell(source, value):
    done, error = reader.ask(source, value)
    print(done, error.removeprefix("GaplessError: the model does not match what is shared: ") if not done else "")
tell("m = model_on('meta', width=200); gapless.attach(it, m)", handle)
print(reader.does("answer = m.embed.weight.device.type, m.embed.weight.requires_grad"))
tell("gapless.attach(it, model_on('meta', dtype=torch.float16).head)", gapless.share({"weight": torch.empty(5000, 300, device="cuda")}))
tell("gapless.attach(it, torch.nn.Linear(4, 4, device='meta'))", loose)
tell("gapless.attach(it, torch.nn.Linear(300, 300, device='meta'))", handle)
tell("gapless.attach(it, model_on('meta'))", untied)
more = gapless.share({"weight": torch.empty(300, 300, device="cuda"), "more": torch.empty(1, device="cuda")})
reader.does("gapless.attach(it, torch.nn.Linear(300, 300, bias=False, device='meta'), strict=False)", more)
reader.end()
""")
    width = "'embed.weight' has the shape (5000, 200) in the model and (5000, 300) in the share"
    assert lines[0].startswith(f"False {width}; 'body.0.weight' has") and lines[0].endswith("and 5 more. The model was not changed")
    assert lines[1] == "('meta', True)"
    assert "'weight' is float16 in the model and float32 in the share" in lines[2]
    assert "'weight' has the strides (4, 1) in the model and (1, 4) in the share" in lines[3]
    assert lines[4].startswith("False the share lacks 'weight', 'bias'; the model lacks 'angles', 'body.0.bias'")
    assert "'embed.weight' and 'head.weight' are one tensor in the model and two in the share" in lines[5]


def test_what_cannot_be_shared_is_told(share):
    lines = share("""
def tell(work):
    try:
        print("done", work())
    except gapless.GaplessError as error:
        print(error)
tell(lambda: gapless.share([torch.empty(3)]))
gapless.enable()
x = torch.empty(1000, device="cuda")
tell(lambda: gapless.share(7))
tell(lambda: gapless.share({}))
tell(lambda: gapless.share({"a": 5}))
tell(lambda: gapless.share([torch.empty(3)]))
tell(lambda: gapless.share([x], name="a/b"))
tell(lambda: gapless.unshare("gapless-share-0-0"))
for bad in ("", "a/b", 5, "gapless-share-" + "0" * 32 + "-1", "gapless-share-zz", "no-such-name"):
    tell(lambda: gapless.attach(bad))
handle = gapless.share([x])
gapless.unshare(handle)
tell(lambda: gapless.unshare(handle))
tell(lambda: gapless.attach(handle))
""")
    starts = [
        "gapless is off",
        "a int cannot be shared: pass a torch.nn.Module",
        "the dict has no tensors",
        "'a' cannot be shared: it is a int",
        "'0' cannot be shared: it is on cpu",
        "the name 'a/b' is not",
        '"gapless-share-0-0" is not a handle',
        "'' is not a handle",
        'a/b cannot be attached: "a/b" is not a handle',
        "5 is not a handle",
        "gapless-share-00000000000000000000000000000000-1 cannot be attached: the process that shared the memory has ended",
        'gapless-share-zz cannot be attached: "gapless-share-zz" is not a handle',
        'no-such-name cannot be attached: nobody shares "no-such-name"',
    ]
    for line, start in zip(lines, [text.replace("'a/b' is not", '"a/b" is not') for text in starts]):
        assert line.startswith(start), (line, start)
    assert "is not shared by this process" in lines[13] and "does not share it any more" in lines[14]


def test_a_failure_at_every_driver_call_leaves_nothing_half_done(share):
    """Of the reader while it attaches, and of the owner while it shares."""
    lines = share("""
reader = Reader()
gapless.enable()
card.card_fail_in.argtypes = [ctypes.c_int64]
model = model_on("cuda", width=1200)
fill(model)
shared = failed = 0
for at in range(40):
    card.card_fail_in(at)
    try:
        handle = gapless.share(model)
    except gapless.GaplessError as error:
        assert "CUDA error 999" in str(error), error
        failed += 1
        continue
    finally:
        card.card_fail_in(-1)
    shared += 1
    gapless.unshare(handle)
print("owner", failed > 0, shared > 0)
handle = gapless.share(model)
reader.does("card.card_fail_in.argtypes = [ctypes.c_int64]; x = torch.empty(5, device='cuda')")
refused = 0
for at in range(60):
    done, error = reader.ask('''
with torch.device("meta"):
    model = Model(width=1200)
mapped = ctypes.c_uint64()
card.card_fail_in(it[1])
try:
    gapless.attach(it[0], model)
finally:
    card.card_fail_in(-1)
    answer = None
''', (handle, at))
    if not done:
        assert "CUDA error 999" in error, error
        refused += 1
        assert reader.does("answer = model.embed.weight.device.type, gapless._share and 0") == ("meta", 0)
    else:
        assert reader.does("answer = holds(model.embed.weight, 0)")
        reader.does("del model")
print("reader", refused > 3)
assert all(reader.does(READ.replace("Model()", "Model(width=1200)"), handle))
figures = "two = (ctypes.c_uint64 * 2)(); gapless._session._on().optional('gapless_shared_bytes', two); answer = list(two)"
print(reader.does(figures)[0] > 0, reader.does("del model, attached\\n" + figures))
reader.end()
""")
    assert lines == ["owner True True", "reader True", "True [0, 0]"]


def test_shared_bytes_count_once(share, tmp_path):
    """In the budget and the ledger they are the owner's; a reader with hardly any budget attaches all the same."""
    lines = share(
        """
owner, reader = Reader(is_gapless=False), Reader(is_gapless=False)
owner.does("gapless.enable(tenant='a:50%'); x = torch.empty(800 * MIB, dtype=torch.uint8, device='cuda'); answer = None")
handle = owner.does("answer = gapless.share([x])")
reader.does("gapless.enable(tenant='b:20%'); y = torch.empty(5, device='cuda')")
before = reader.does("answer = gapless.stats()['gapless.tenant.total']")
reader.does("got = gapless.attach(it)", handle)
print(reader.does("answer = gapless.stats()['gapless.tenant.total']") == before)
print(reader.does("answer = gapless.stats()['reserved_bytes.all.current'] < 64 * MIB, gapless.stats()['gapless.attached']"))
print(owner.does("answer = gapless.stats()['gapless.shared']"))
reader.end()
owner.end()
""",
        GAPLESS_RUN_DIR=str(tmp_path),
    )
    assert lines == ["True", str((True, 800 << 20)), str(800 << 20)]


def test_a_call_that_failed_once_makes_no_later_memory_unshareable(share):
    """The driver may refuse one page for a passing reason, at any call of a request."""
    lines = share("""
reader = Reader()
gapless.enable()
torch.empty(1, device="cuda")
card.card_fail_in.argtypes = [ctypes.c_int64]
kept, refused = [], 0
for count in range(24):
    card.card_fail_in(count)
    try:
        kept.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
    except RuntimeError:
        refused += 1
    card.card_fail_in(-1)
faults = card.card_faults()
new = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
write(new, 3)
print(reader.does("answer = holds(gapless.attach(it)['tensor'], 3)", gapless.share(new)), faults > 5)
reader.end()
""")
    assert lines == ["True True"]
