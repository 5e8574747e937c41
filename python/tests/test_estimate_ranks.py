"""Several ranks of a script, as torchrun starts them: their messages, and the scripts that `fit` writes."""

import json
import os
import subprocess
import sys

import pytest

RANKS = """
    import os, torch, torch.distributed as dist
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
"""


def test_ranks_hear_objects_and_numbers_of_each_other(script, tmp_path):
    file = str(tmp_path / "shared.pt")
    program = f"""{RANKS}
    told = [{{"width": 512}}] if rank == 0 else [None]
    dist.broadcast_object_list(told, src=0)
    gathered, part = [None] * world, [None]
    dist.all_gather_object(gathered, rank * 10)
    dist.scatter_object_list(part, ["a", "b"] if rank == 0 else None, src=0)
    assert told == [{{"width": 512}}] and gathered == [0, 10] and part == ["ab"[rank]]
    # Rows of another number on each rank, gathered at the length of the longest.
    rows = torch.nn.Linear(512, 512).cuda()(torch.zeros(100 * (rank + 1), 512, device="cuda")).detach()
    sizes = [torch.zeros(1, dtype=torch.int64, device="cuda") for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(rows)], device="cuda"))
    assert [int(size) for size in sizes] == [100, 200]
    together = torch.zeros(world, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(together, torch.tensor([rank], device="cuda"))
    total, most, seed = torch.tensor([rank + 1], device="cuda"), torch.tensor([rank], device="cuda"), torch.tensor(7 - 7 * rank, device="cuda")
    dist.all_reduce(total)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    dist.broadcast(seed, 0)
    assert together.tolist() == [0, 1] and (total.item(), most.item(), seed.item()) == (3, 1, 7)
    # One rank writes what the other reads, after a barrier.
    if rank == 0:
        torch.save(torch.arange(4), {file!r})
    dist.barrier()
    assert torch.load({file!r}, map_location="cuda").tolist() == [0, 1, 2, 3]
    # A value that is not known is not taken to be the value before it.
    if rank == 0:
        dist.send(torch.ones(3, dtype=torch.int64, device="cuda"), 1)
    else:
        came = torch.zeros(3, dtype=torch.int64, device="cuda")
        dist.recv(came, 0)
        came.tolist()
    # Unused parameters are found through pinned memory.
    model = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)]).cuda()
    model.forward = model[0].forward
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], find_unused_parameters=True)
    model(torch.zeros(2, 8, device="cuda")).sum().backward()
    """
    code, found, err = script(program, "--nproc", "2")
    assert code == 0, err
    assert "tolist" in {row["function"] for row in found["ranks"][1]["reads"]}


def test_a_pipeline_learns_the_shapes_of_its_neighbours(script):
    program = f"""{RANKS}
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    device = torch.device("cuda", rank)
    layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(2))).to(device)
    schedule = Schedule1F1B(PipelineStage(layers, rank, world, device), n_microbatches=2, loss_fn=lambda out, wanted: (out - wanted).square().mean())
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for _ in range(3):
        schedule.step(torch.zeros(64, 256, device=device)) if rank == 0 else schedule.step(target=torch.zeros(64, 256, device=device))
        optimizer.step()
        optimizer.zero_grad()
    """
    code, found, err = script(program, "--nproc", "2")
    assert code == 0 and [rank["steps"] for rank in found["ranks"]] == [3, 3], err


def test_a_rank_that_ends_early_keeps_nobody_waiting(script):
    program = f"""{RANKS}
    if rank == 0:
        raise ValueError("rank 0 has no data")
    dist.broadcast_object_list([None], src=0)
    """
    code, _, err = script(program, "--nproc", "2")
    assert code == 2 and "rank 0 has no data" in err, err


def test_ranks_that_choose_settings_of_the_allocator_meet_once_more(script):
    program = f"""
    import os, time
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "roundup_power2_divisions:2"
    {RANKS}
    held = torch.empty(33 << 20, dtype=torch.uint8, device="cuda")
    time.sleep(0.5 * rank)
    told = [rank]
    dist.broadcast_object_list(told, src=1)
    assert told == [1]
    """
    code, found, err = script(program, "--nproc", "2")
    assert code == 0 and [rank["peak_allocated"] >> 20 for rank in found["ranks"]] == [48, 48], err


def test_ranks_that_are_stopped_stop_at_the_same_step(script):
    # The ranks never end, and one computes for longer; each waits for the other, through Gapless and in C++.
    program = f"""{RANKS}
    beside = dist.new_group(backend="gloo")
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    while True:
        model(torch.zeros(8 + step, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(2000 * rank):
            step += 0
        step += 1
        told = [step]
        dist.broadcast_object_list(told, src=step % 2)
        assert told == [step]
        dist.all_reduce(torch.zeros(1), group=beside)
    """
    code, found, err = script(program, "--nproc", "2", "--time-limit", "0.2")
    assert code in (0, 1) and [rank["stopped"] for rank in found["ranks"]] == ["time", "time"], err
    assert found["ranks"][0]["steps"] == found["ranks"][1]["steps"] and all(rank["at_least"] for rank in found["ranks"])


def test_a_rank_that_waits_for_one_that_was_stopped_is_stopped_too(script):
    # Only one has steps: they have no step in common.
    program = f"""{RANKS}
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    while rank == 0:
        model(torch.zeros(8 + step, 64, device="cuda")).sum().backward()
        optimizer.step()
        step += 1
    dist.broadcast_object_list([None], src=0)
    """
    code, found, err = script(program, "--nproc", "2", "--time-limit", "0.2")
    assert code in (0, 1) and [rank["stopped"] for rank in found["ranks"]] == ["time", "time"], err
    assert found["ranks"][1]["steps"] == 0


@pytest.mark.parametrize("tied", [False, True])
def test_the_sharded_script_that_fit_writes_runs_and_takes_what_it_says(bench, tmp_path, tied):
    pytest.importorskip("transformers")
    program = os.environ.get("STANDIN_GAPLESS")
    if not program:
        pytest.skip("STANDIN_GAPLESS is not set")
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 512,
                "intermediate_size": 1024,
                "num_hidden_layers": 4,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "vocab_size": 32000,
                "tie_word_embeddings": tied,
            }
        )
    )
    asked = [program, "fit", str(config), "--gpus", "2", "--gpu", "h100", "--batch", "2", "--seq", "512", "--zero", "fsdp"]
    written = subprocess.run([*asked, "--emit", "fsdp", "--out", str(tmp_path)], capture_output=True, text=True, check=False)
    assert (tmp_path / "train_fsdp.py").is_file(), written.stderr
    answer = json.loads(subprocess.run([*asked, "--format", "json"], capture_output=True, text=True, check=False).stdout)
    command = [sys.executable, "-m", "gapless._estimate.command", "--nproc", "2", "--format", "json", tmp_path / "train_fsdp.py"]
    done = bench.start(command, LD_PRELOAD=None, LD_LIBRARY_PATH=None, GAPLESS_CARD_LIBRARIES=str(bench.standin))
    assert done.code == 0, done.err
    ranks = json.loads(done.out)["ranks"]
    assert [rank["steps"] for rank in ranks] == [3, 3]
    for rank in ranks:
        assert abs(answer["peak_allocated"] / rank["peak_allocated"] - 1) < 0.03, (answer["peak_allocated"], rank["peak_allocated"])
    # The line that the script prints says the same.
    line = next(line for line in done.err.splitlines() if line.startswith('{"plan"'))
    assert json.loads(line)["measured_peak_allocated"] == ranks[0]["peak_allocated"]
