"""The bench itself, with torch's own allocator: what torch does on the card is what it does on a real one."""


def test_torch_allocates_on_the_card_and_answers_for_it(bench):
    done = bench.passes(
        """
        import torch
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        x = torch.empty(1 << 20, device="cuda")
        assert torch.cuda.memory_allocated() == 4 << 20 and torch.cuda.memory_reserved() == 20 << 20
        free, total = torch.cuda.mem_get_info()
        assert total - free == 20 << 20
        del x
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0 and torch.cuda.max_memory_allocated() == 4 << 20
        print(torch.cuda.get_allocator_backend())
        """
    )
    assert (done.out, done.err) == ("native\n", "")


def test_events_hold_memory_back_until_they_complete(bench):
    bench.passes(
        """
        import ctypes, torch
        card = ctypes.CDLL("libcuda.so.1")
        side = torch.cuda.Stream()
        card.card_hold(1)
        x = torch.empty(1 << 20, device="cuda")
        at = x.data_ptr()
        x.record_stream(side)
        del x
        assert torch.cuda.memory_stats()["active_bytes.all.current"] == 4 << 20
        y = torch.empty(1 << 20, device="cuda")
        assert y.data_ptr() != at
        card.card_hold(0)
        z = torch.empty(1 << 20, device="cuda")
        assert z.data_ptr() == at
        """
    )


def test_a_card_that_is_full_raises(bench):
    bench.passes(
        """
        import torch
        x = torch.empty(48 << 20, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            assert "32.00 MiB" in str(error)
        else:
            raise SystemExit("no error")
        """,
        STANDIN_CAPACITY=str(64 << 20),
    )


def test_training_graphs_pools_and_snapshots_run(bench):
    bench.passes(
        """
        import torch
        model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.GELU()).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.zeros(5, device="cuda") + 1
        graph.replay()
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            z = torch.empty(100, device="cuda")
        torch.cuda.memory._record_memory_history()
        w = torch.empty(100, device="cuda")
        pools = {tuple(segment["segment_pool_id"]) for segment in torch.cuda.memory._snapshot()["segments"]}
        assert len(pools) == 3, pools
        """
    )
