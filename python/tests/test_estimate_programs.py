"""Whole programs as people write them, with the things that spoil an estimate: checks of values, loops until something
converges, routers, peaks that are set back, processes of their own, errors that are caught."""

MIB = 1 << 20


# ---- values that are not known ----


def test_checks_pass_and_loops_end(script):
    program = """
        import itertools, torch
        boxes = torch.nn.Linear(64, 4).cuda()(torch.randn(16, 64, device="cuda"))
        assert (boxes[:, 2:] >= boxes[:, :2]).all()
        assert (boxes >= 0).all() and (boxes <= 1).all(), f"boxes outside of the picture: {boxes.shape}"
        if not (boxes[:, 2:] >= boxes[:, :2]).all():
            raise ValueError(f"corners are expected, and this is {boxes}")
        if (boxes < 0).any() or boxes.sum() < 0:
            raise ValueError("negative")
        assert torch.allclose(boxes, 2 * boxes) and not torch.equal(boxes, 2 * boxes)
        assert torch.isfinite(boxes).all() and not torch.isnan(boxes).any()
        torch._assert((boxes > 5).all(), "too small")
        torch.distributions.Normal(boxes, boxes.abs()).rsample()
        assert 0 <= torch.distributions.Categorical(logits=boxes).sample()[0].item() < 4
        # What is no check goes by a number next to 0, as `.item()` does.
        assert (1 if boxes.sum() > 0 else 2) == (1 if boxes.sum().item() > 0 else 2) == 1 and (1 if boxes.sum() > 0.1 else 2) == 2
        for turn in itertools.count():
            if boxes.mean() > 0.5:
                break
        while not boxes.mean() > 0.5:
            turn += 1
    """
    code, found, err = script(program)
    assert code == 0, err
    said = " ".join(found["assumptions"])
    assert "a check at" in said and "was taken to pass" in said
    branches = {row["place"].rsplit(":", 1)[1] for row in found["reads"] if row["function"] == "__bool__"}
    assert branches == {"16", "18", "20"}


def test_routers_guards_and_figures_of_accuracy_are_what_they_are(script):
    program = """
        import torch, torch.nn.functional as F
        classes = 5
        model = torch.nn.Conv2d(3, classes, 1).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(9):
            out = model(torch.randn(2, 3, 16, 32, device="cuda"))
            wanted = torch.randint(0, classes, (2, 16, 32), device="cuda")
            loss = F.cross_entropy(out, wanted)
            loss.backward()
            # The confusion matrix: the dimension of argmax is a keyword, and not the last.
            confusion = torch.bincount((classes * wanted + out.argmax(dim=1)).flatten(), minlength=classes**2).reshape(classes, classes)
            print((out.max(1)[1] == wanted).float().mean().item(), confusion.sum().item())
            # A router of one expert each, whose tokens are split by their counts.
            rows = out.permute(0, 2, 3, 1).reshape(-1, classes)
            weight, expert = rows.softmax(-1).max(-1)
            parts = rows[expert.argsort()].split(torch.bincount(expert, minlength=classes).tolist())
            assert sorted(len(part) for part in parts) == [204, 205, 205, 205, 205]
            counts = torch.bincount((rows[:, 0] * 3).long(), minlength=4)
            assert counts.sum().item() == len(rows)
            # A guard against broken gradients.
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if torch.isfinite(norm):
                optimizer.step()
            optimizer.zero_grad()
    """
    code, found, err = script(program)
    assert code == 0 and found["steps"] == 9, err
    # A choice counts if a size depends on it, and not if the program only prints a share.
    assert [row["function"] for row in found["choices"]].count("argmax") == 1, found["choices"]
    program = """
        import torch
        model = torch.nn.Linear(64, 10).cuda()
        out = model(torch.randn(512, 64, device="cuda"))
        print((out.argmax(1) == torch.randint(0, 10, (512,), device="cuda")).float().mean().item(), out.max(1)[0].sum().item())
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        end.record()
        print("per second", 512 / start.elapsed_time(end))
    """
    code, found, err = script(program)
    assert code == 0 and found["choices"] == [], (err, found)


# ---- what programs do to torch ----


def test_peaks_that_are_set_back_and_recordings_of_the_program_itself_spoil_nothing(script, tmp_path):
    program = f"""
        import torch
        torch.cuda.memory._record_memory_history(max_entries=10)
        model = torch.nn.Linear(1024, 1024, bias=False).cuda()
        passing = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        del passing
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() < 1 << 30
        torch.cuda.memory._dump_snapshot({str(tmp_path / "own.pickle")!r})
        torch.cuda.memory._record_memory_history(enabled=None)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randn(8, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.reset_max_memory_allocated()
    """
    code, found, err = script(program)
    assert code == 0, err
    weight = 4 * MIB
    assert found["peak_allocated"] == (1 << 30) + weight and found["peak_reserved"] >= found["peak_allocated"]
    assert found["kinds"] == {"parameters": weight, "gradients": 0, "optimizer states": 0, "activations and workspaces": 1 << 30}
    assert max(phase["peak_allocated"] for phase in found["phases"]) == found["peak_allocated"]


def test_settings_of_the_allocator_that_a_script_chooses_count(script):
    program = """
        import os
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "roundup_power2_divisions:2"
        import torch
        held = torch.empty(33 << 20, dtype=torch.uint8, device="cuda")
    """
    code, found, err = script(program)
    assert code == 0 and found["peak_allocated"] == 48 * MIB, err


SPAWNED = """
    import os, torch, torch.distributed as dist, torch.multiprocessing as mp

    def work(rank, world, width):
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=os.environ.get("MASTER_PORT", "29613"))
        dist.init_process_group("nccl", rank=rank, world_size=world)
        torch.cuda.set_device(rank)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(width, width, bias=False).to(rank), device_ids=[rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(9):
            model(torch.randn(8, width, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    if __name__ == "__main__":
        world = COUNT
        mp.spawn(work, args=(world, 1024 * (1 + int(os.environ.get("RANK", "0")))), nprocs=world)
"""


def test_ranks_that_a_script_spawns_are_estimated(script):
    code, found, err = script(SPAWNED.replace("COUNT", "torch.cuda.device_count()"), "--nproc", "2")
    assert code == 0 and [rank["steps"] for rank in found["ranks"]] == [9, 9], err
    # Each process ran its own rank: the second one has a model of four times the size.
    assert [rank["kinds"]["parameters"] for rank in found["ranks"]] == [4 * MIB, 16 * MIB]
    code, _, err = script(SPAWNED.replace("COUNT", "4"))
    assert code == 2 and "--nproc 4" in err, err


def test_a_script_whose_processes_do_the_work_is_refused(script):
    program = """
        import torch, torch.multiprocessing as mp

        def work(rank):
            torch.empty(1 << 20, device="cuda")

        if __name__ == "__main__":
            process = mp.get_context("spawn").Process(target=work, args=(0,))
            process.start()
            process.join()
    """
    code, _, err = script(program)
    assert code == 2 and "allocated nothing" in err and "--nproc" in err, err


# ---- out of memory ----

HALVING = """
    import torch
    model = torch.nn.Linear(1 << 14, 1 << 14, bias=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = 1 << 19
    for step in range(5):
        try:
            model(torch.randn(rows, 1 << 14, device="cuda")).sum().backward()
        except torch.cuda.OutOfMemoryError:
            GO_ON
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_program_that_finds_its_batch_is_judged_by_what_it_found(script):
    code, found, err = script(HALVING.replace("GO_ON", "rows //= 2; continue"), "--device", "rtx-4090", "--steps", "2")
    assert code == 0 and found["fits"] is True and found["out_of_memory_caught"] >= 1, err
    assert found["peak_allocated"] <= found["limit"]
    code, found, err = script(HALVING.replace("GO_ON", "print('too large'); break"), "--device", "rtx-4090", "--steps", "2")
    assert code == 1 and found["fits"] is False and found["out_of_memory_caught"] == 0, err
    assert found["peak_allocated"] > found["limit"]
