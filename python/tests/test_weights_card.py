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
        assert card.card_pinned() == 0
        rows = weights.load(path + ".again.safetensors", names=["ints"], rank=1, world=4, threads=1)
        assert torch.equal(on_host(rows["ints"]), tensors["ints"].chunk(4)[1])
        print("same")
        """,
        GAPLESS_LOADER=str(loader),
        MODEL=str(tmp_path / "m.safetensors"),
    )
    assert done.out == "same\n" and os.path.isfile(tmp_path / "m.safetensors")
