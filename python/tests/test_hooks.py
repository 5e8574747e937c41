"""torch's calls of the hooks: each hook is called, and memory is not handed out while something still uses it."""


def test_every_hook_is_called(double):
    double.passes(
        """
        import gapless, torch
        gapless.enable(overlay=False)
        calls = lambda: {key[7:]: value for key, value in gapless.stats().items() if key.startswith("double.") and value}
        x = torch.empty(1 << 20, device="cuda")
        assert calls()["init"] == 1 and "record_stream" not in calls()
        x.record_stream(torch.cuda.Stream())
        assert calls()["record_stream"] == 1
        torch.cuda.set_per_process_memory_fraction(0.5)
        assert calls()["fraction"] == 1
        torch.cuda.empty_cache()
        assert calls()["reset"] == 1
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.zeros(5, device="cuda")
        assert calls()["begin_pool"] == calls()["end_pool"] == 1
        graph.replay()
        graph.reset()
        assert calls()["release_pool"] == 1
        gapless.trim()
        gapless.reserve(1)
        assert calls()["trim"] == calls()["reserve"] == 1
        """
    )


def test_memory_of_another_stream_waits_for_it(real):
    real.passes(
        """
        import ctypes, gapless, torch
        gapless.enable()
        card = ctypes.CDLL("libcuda.so.1")
        side = torch.cuda.Stream()
        card.card_hold(1)
        x = torch.empty(1 << 20, device="cuda")
        at = x.data_ptr()
        x.record_stream(side)
        del x
        y = torch.empty(1 << 20, device="cuda")
        assert y.data_ptr() != at, "handed out while the other stream uses it"
        card.card_hold(0)
        """,
        "-Wignore",
    )


def test_memory_of_a_graph_is_not_handed_out(real):
    real.passes(
        """
        import gapless, torch
        gapless.enable()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.empty(1 << 20, device="cuda")
            inside = y.data_ptr()
            del y
        kept = [torch.empty(1 << 20, device="cuda") for _ in range(64)]
        size = 4 << 20
        assert all(abs(k.data_ptr() - inside) >= size for k in kept)
        graph.replay()
        """,
        "-Wignore",
    )


def test_training_in_threads_and_streams(bench):
    bench.passes(
        """
        import gapless, threading, torch
        gapless.enable()
        def train():
            with torch.cuda.stream(torch.cuda.Stream()):
                model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.GELU()).cuda()
                optimizer = torch.optim.AdamW(model.parameters())
                for size in (8, 16, 32, 8):
                    model(torch.randn(size, 64, device="cuda")).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
        threads = [threading.Thread(target=train) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        import gc
        gc.collect()
        assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()
        assert torch.empty(0, device="cuda").data_ptr() == 0
        """,
        "-Wignore",
    )


def test_memory_of_a_stream_that_asks_no_more_goes_to_others_after_a_wait_for_the_card(real):
    """For any kind of stream: the driver gives a green context's stream the handle of one that is gone."""
    lines = real.passes(
        """
import ctypes, torch, gapless
gapless.enable(limit="64MiB")
card = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20
stream = ctypes.c_void_p()
torch.zeros(1, device="cuda")
assert card.cuStreamCreate(ctypes.byref(stream), 1) == 0
def of(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")
def figures():
    stats = gapless.stats()
    return stats["gapless.pages_lent"], stats["gapless.ladder.wait"]
for megabytes, is_green in ((20, False), (30, False), (40, True)):
    if is_green:
        card.card_move_stream(stream, ctypes.c_void_p(0x9990))
    # As a library in C++ does it.
    before = torch.cuda.current_stream()
    torch._C._cuda_setStream(stream_id=stream.value, device_index=0, device_type=1)
    x = of(megabytes * MIB)
    torch.cuda.set_stream(before)
    del x
    lent, waits = figures()
    # There is room for this one, and not for the next.
    other = of(15 * MIB)
    print(figures()[0] - lent, end=" ")
    del other
    other = of(50 * MIB)
    print(figures()[0] > lent, figures()[1] - waits)
    del other
    torch.cuda.empty_cache()
""",
        "-Wignore",
    ).lines()
    assert lines == ["0 True 1"] * 3


def test_the_default_stream_of_a_green_context_is_another_stream(bench):
    """Its handle is 0, as that of the card's own default stream: memory freed there is used again only after a wait."""
    bench.passes(
        """
import ctypes, torch, gapless
gapless.enable(limit="64MiB")
card = ctypes.CDLL("libcuda.so.1")
card.cuCtxPushCurrent_v2.argtypes = [ctypes.c_void_p]
MIB = 1 << 20
torch.zeros(1, device="cuda")
def streams():
    return {segment["stream"] for segment in torch.cuda.memory_snapshot()}
assert streams() == {0}
assert card.cuCtxPushCurrent_v2(0x9990) == 0
green = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
place = green.data_ptr()
assert card.cuCtxPopCurrent_v2(None) == 0
assert streams() == {0, 0x9991}, streams()
own = torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")
# Of the card's own stream, used in the green context.
assert card.cuCtxPushCurrent_v2(0x9990) == 0
own.record_stream(torch.cuda.current_stream())
del green
assert card.cuCtxPopCurrent_v2(None) == 0
del own
again = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
assert not place <= again.data_ptr() < place + 20 * MIB
# Before the request fails it is waited for, and then given.
more = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
""",
    )
