"""gapless.weights on the card of torch-bench/python: copies to memory of the Gapless allocator are real there, kernels
are not, so chunks are decoded on the host. crates/gapless-loader/tests runs the kernel."""

import os
from pathlib import Path

import pytest

NAME = "libgapless_loader.so"


def test_bytes_arrive_on_the_card_and_come_back(real, tmp_path):
    loader = Path(real.library).with_name(NAME)
    if not loader.is_file():
        pytest.skip(f"{NAME} is not built: run `cargo build -p gapless-loader`")
    done = real.passes(
        """
        import ctypes, os, torch, gapless
        gapless.enable()
        from gapless import weights
        from gapless.weights import _load, _native

        torch.manual_seed(0)
        path = os.environ["MODEL"]
        # Functions of torch's CPU alone: nothing computes on this card.
        tensors = {
            "wide": (torch.randn(3000, 700) * 0.02).to(torch.bfloat16),
            "full": torch.randn(999, 1001),
            "ints": torch.arange(5000),
        }
        card = ctypes.CDLL("libcuda.so.1")

        def on_host(tensor):
            out = torch.empty(tensor.shape, dtype=tensor.dtype)
            size = ctypes.c_size_t(tensor.numel() * tensor.dtype.itemsize)
            assert card.cuMemcpyDtoHAsync_v2(ctypes.c_void_p(out.data_ptr()), ctypes.c_uint64(tensor.data_ptr()), size, None) == 0
            return out

        for pack in (False, True):
            weights.save(tensors, path, pack=pack)
            if pack:
                with _native.Catalogue(path) as catalogue:
                    filler = _load.Filler(catalogue, torch.device("cuda"), 1, False, kernel=False)
                    found = {}
                    for at, tensor in enumerate(catalogue.tensors):
                        dtype = _load.torch_dtype(tensor["dtype"])
                        found[tensor["name"]] = torch.empty(tensor["shape"], dtype=dtype, device="cuda")
                        filler.add(at, 0, found[tensor["name"]], dtype)
                    progress = filler.run()
                    assert progress.on_host > 0 and progress.on_card == 0
            else:
                found = weights.load(path, threads=1)
                assert {tensor.device.type for tensor in found.values()} == {"cuda"}
            for name, tensor in tensors.items():
                assert torch.equal(on_host(found[name]).view(torch.uint8), tensor.view(torch.uint8)), (name, pack)
            # From the card to a file, and back to the host.
            weights.save(found, path + ".again.safetensors", pack=pack)
            again = weights.load(path + ".again.safetensors", device="cpu")
            assert all(torch.equal(again[name].view(torch.uint8), tensor.view(torch.uint8)) for name, tensor in tensors.items())
            del found
        weights.release()
        assert card.card_pinned() == 0
        rows = weights.load(path + ".again.safetensors", names=["ints"], rank=1, world=4, threads=1)
        assert torch.equal(on_host(rows["ints"]), tensors["ints"].chunk(4)[1])
        # In the background, through pinned memory. torch's own copies move no bytes on this card: shapes are compared.
        found = weights.load(path + ".again.safetensors", names=["ints", "full"], threads=1)
        weights.save(found, path + ".later.safetensors", asynchronous=True).wait()
        again = weights.load(path + ".later.safetensors", device="cpu")
        assert {name: tensor.shape for name, tensor in again.items()} == {name: tensors[name].shape for name in ("ints", "full")}
        print("same")
        """,
        GAPLESS_LOADER=str(loader),
        MODEL=str(tmp_path / "m.safetensors"),
    )
    assert done.out == "same\n" and os.path.isfile(tmp_path / "m.safetensors")


def test_from_pretrained_reads_straight_to_the_card(real, tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    loader = Path(real.library).with_name(NAME)
    if not loader.is_file():
        pytest.skip(f"{NAME} is not built: run `cargo build -p gapless-loader`")
    done = real.passes(
        """
        import ctypes, os, torch, transformers, gapless
        gapless.enable()
        from gapless import weights
        from gapless.weights import _pretrained

        folder = os.environ["MODEL"]
        torch.manual_seed(0)
        config = transformers.LlamaConfig(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                          num_key_value_heads=2, tie_word_embeddings=True)
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        model.save_pretrained(folder, max_shard_size="60KB")
        devices = []
        plain = _pretrained.Opened.__init__
        _pretrained.Opened.__init__ = lambda self, file, device, threads: (devices.append(str(device)), plain(self, file, device, threads))[1]
        with weights.from_pretrained(device="cuda", threads=1):
            found = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cuda")
        assert len(devices) > 2 and set(devices) == {"cuda"}, devices
        card = ctypes.CDLL("libcuda.so.1")
        for name, tensor in model.state_dict().items():
            there = found.state_dict()[name]
            assert there.device.type == "cuda" and there.dtype == tensor.dtype
            out = torch.empty(tensor.shape, dtype=tensor.dtype)
            size = ctypes.c_size_t(out.numel() * out.dtype.itemsize)
            assert card.cuMemcpyDtoHAsync_v2(ctypes.c_void_p(out.data_ptr()), ctypes.c_uint64(there.data_ptr()), size, None) == 0
            assert torch.equal(out.view(torch.uint8), tensor.view(torch.uint8)), name
        assert found.lm_head.weight is found.model.embed_tokens.weight
        print("same")
        """,
        GAPLESS_LOADER=str(loader),
        MODEL=str(tmp_path / "model"),
        HF_HUB_OFFLINE="1",
    )
    assert done.out == "same\n"
