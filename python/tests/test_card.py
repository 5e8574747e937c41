"""The bench itself, with torch's own allocator: torch does the same on this card as on a real one."""


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


# ---- functions that some releases of torch call and others do not, called directly ----


def test_ranks_that_gather_by_broadcasts_in_a_group_are_told_the_same(bench):
    bench.passes(
        """
        import ctypes
        card = ctypes.CDLL("libgapless-card.so")
        INT64, TO_CARD, FROM_CARD = 4, 1, 2
        comm = ctypes.c_void_p()

        class Id(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_char * 128)]

        assert card.ncclCommInitRank(ctypes.byref(comm), 3, Id(), 1) == 0
        memory = ctypes.c_void_p()
        assert card.cudaMalloc(ctypes.byref(memory), 1 << 20) == 0
        own, places = memory.value, [memory.value + 512 * (1 + rank) for rank in range(4)]

        def send(value):
            sent = ctypes.c_int64(value)
            card.cudaMemcpy(ctypes.c_void_p(own), ctypes.byref(sent), 8, TO_CARD)

        def read(place):
            found = ctypes.c_int64(-1)
            card.cudaMemcpy(ctypes.byref(found), ctypes.c_void_p(place), 8, FROM_CARD)
            return found.value

        def broadcast(source, place, root, elements=1):
            card.ncclBroadcast(ctypes.c_void_p(source), ctypes.c_void_p(place), ctypes.c_size_t(elements), INT64, root, comm, None)

        # One broadcast from each rank; a rank passes its data for its own alone.
        send(42)
        card.ncclGroupStart()
        card.ncclGroupStart()
        for rank in range(3):
            broadcast(own if rank == 1 else places[rank], places[rank], rank)
        card.ncclGroupEnd()
        assert read(places[0]) == 0, "nothing happens before the outermost group ends"
        card.ncclGroupEnd()
        assert [read(place) for place in places] == [42, 42, 42, 0]

        # What has another size is not known, and an old value does not stay.
        send(43)
        card.ncclGroupStart()
        broadcast(places[0], places[0], 0, elements=2)
        broadcast(own, places[1], 1)
        card.ncclGroupEnd()
        assert [read(place) for place in places[:3]] == [0, 43, 42]

        # The second broadcast of a rank is matched with the second of this one.
        send(7)
        card.ncclGroupStart()
        broadcast(places[1], places[1], 1)
        broadcast(own, places[2], 1)
        broadcast(places[0], places[0], 0)
        broadcast(places[3], places[3], 0)
        card.ncclGroupEnd()
        assert [read(place) for place in places] == [43, 43, 7, 7]
        """
    )


def test_what_a_graph_keeps_goes_with_its_last_owner(bench):
    bench.passes(
        """
        import ctypes
        card = ctypes.CDLL("libgapless-card.so")
        gone = []
        drop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(gone.append)

        def kept_by(graph, number, move):
            made = ctypes.c_void_p()
            assert card.cudaUserObjectCreate(ctypes.byref(made), ctypes.c_void_p(number), drop, 1, 1) == 0
            assert card.cudaGraphRetainUserObject(ctypes.c_void_p(graph), made, 1, int(move)) == 0
            return made

        first, second, executable = 1, 2, ctypes.c_void_p()
        kept_by(first, 100, move=True)
        shared = kept_by(second, 200, move=False)
        card.cudaGraphInstantiate(ctypes.byref(executable), ctypes.c_void_p(first), ctypes.c_ulonglong(0))
        card.cudaGraphInstantiateWithFlags(ctypes.byref(executable), ctypes.c_void_p(first), ctypes.c_ulonglong(0))
        card.cudaGraphDestroy(ctypes.c_void_p(first))
        card.cudaGraphExecDestroy(executable)
        assert gone == [], "another executable has it"
        card.cudaGraphExecDestroy(executable)
        assert gone == [100]
        card.cudaGraphDestroy(ctypes.c_void_p(second))
        assert gone == [100], "the program has it"
        card.cudaUserObjectRelease(shared, 1)
        assert gone == [100, 200]
        """
    )


def test_an_algorithm_of_a_product_keeps_its_attributes(bench):
    bench.passes(
        """
        import ctypes
        card = ctypes.CDLL("libgapless-card.so")
        algorithm, result = (ctypes.c_uint32 * 16)(), (ctypes.c_ubyte * 96)(*[255] * 96)
        card.cublasLtMatmulAlgoInit(None, 68, 0, 14, 14, 14, 14, 66, algorithm)
        tile, written, found = ctypes.c_uint32(20), ctypes.c_size_t(), ctypes.c_uint32()
        assert card.cublasLtMatmulAlgoConfigSetAttribute(algorithm, 1, ctypes.byref(tile), ctypes.c_size_t(4)) == 0
        for attribute, expected in ((0, 66), (1, 20), (2, 0)):
            assert card.cublasLtMatmulAlgoConfigGetAttribute(algorithm, attribute, ctypes.byref(found), ctypes.c_size_t(4), ctypes.byref(written)) == 0
            assert (found.value, written.value) == (expected, 4)
        assert card.cublasLtMatmulAlgoConfigSetAttribute(algorithm, 16, ctypes.byref(tile), ctypes.c_size_t(4)) != 0
        assert card.cublasLtMatmulAlgoCheck(None, None, None, None, None, None, algorithm, result) == 0
        assert list(result) == [255] * 64 + [0] * 32
        """
    )
