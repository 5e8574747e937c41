"""Makes the dumps beside this file: small modules, compiled for an H200 that is not there, with XLA's own figures.

    python testdata/xla/make.py [NAME ...]     needs `pip install "jax[cuda13]" equinox optax`, no card

For each module: NAME.hlo.pb.gz, the twin NAME.live-range.txt.gz, and its row of memory.json, which has the members of
`memory_analysis()`. Modules were made with jax 0.12 but for those that the row says.
"""

import gzip
import json
import os
import pathlib
import runpy
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = ROOT / "torch-bench/live/jax_programs"
sys.path[:0] = [str(ROOT / "python"), str(PROGRAMS)]
ONE = ["mlp_sgd", "gpt_donated", "gpt_remat", "gpt_scan", "gpt_scan_remat", "gpt_bf16_donated", "decode_cache", "moe_dense", "resnet_f32", "unet"]
ONE += ["lstm", "accumulated", "sorting", "equinox_mlp"]
# Made in full size, with jax 0.11: their dumps are as small.
FULL = ["fourier", "loop", "segments", "large_vocabulary", "chunked_vocabulary", "solve", "per_example", "top_k"]


def sharded(name):
    """A lowered step over eight devices."""
    import jax
    import jax.numpy as jnp
    import models as m
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    devices = np.array(jax.devices())

    def placed(tree, mesh, spec):
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh, spec(a))), tree)

    def step(params, opt, x):
        loss, grads = jax.value_and_grad(lambda p: m.cross_entropy(m.lm(p, x, 4), jnp.roll(x, -1, 1)))(params)
        params, opt = m.adam(grads, opt, params)
        return params, opt, loss

    params = jax.eval_shape(lambda: m.lm_init(jax.random.key(0), 512, 256, 2, 64, experts=8 if name == "sharded_experts" else 0))
    opt = jax.eval_shape(m.adam_init, params)
    x = jax.ShapeDtypeStruct((16, 64), jnp.int32)
    if name == "sharded_data":
        mesh = Mesh(devices, ("data",))
        rules = (lambda a: P(), lambda a: P("data"))
    elif name == "sharded_fsdp":
        mesh = Mesh(devices, ("data",))
        rules = (lambda a: P("data") if a.ndim and a.shape[0] % 8 == 0 else P(), lambda a: P("data"))
    elif name == "sharded_tensor":
        mesh = Mesh(devices.reshape(2, 4), ("data", "model"))
        rules = (lambda a: P(None, "model") if a.ndim == 2 else P(), lambda a: P("data"))
    elif name == "sharded_experts":
        mesh = Mesh(devices, ("data",))
        rules = (lambda a: P("data") if a.ndim == 3 else P(), lambda a: P("data"))
    elif name == "sharded_pipeline":
        mesh = Mesh(devices, ("stage",))

        def stage(w, x):
            for _ in range(8):
                x = jnp.tanh(x @ w[0])
                x = jax.lax.ppermute(x, "stage", [(i, (i + 1) % 8) for i in range(8)])
            return jax.lax.psum(jnp.sum(x**2), "stage")

        f = jax.shard_map(stage, mesh=mesh, in_specs=(P("stage"), P("stage")), out_specs=P())
        w = jax.ShapeDtypeStruct((8, 256, 256), jnp.float32, sharding=NamedSharding(mesh, P("stage")))
        x = jax.ShapeDtypeStruct((64, 256), jnp.float32, sharding=NamedSharding(mesh, P("stage")))
        return jax.jit(jax.value_and_grad(f)).trace(w, x)
    weight, batch = rules
    return jax.jit(step, donate_argnums=(0, 1)).trace(placed(params, mesh, weight), placed(opt, mesh, weight), placed(x, mesh, batch))


def offloaded():
    """A step whose residuals wait in the host's memory."""
    from functools import partial

    import jax
    import jax.numpy as jnp
    from jax.ad_checkpoint import checkpoint_name

    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["h"], offload_src="device", offload_dst="pinned_host"
    )

    @partial(jax.checkpoint, policy=policy)
    def layer(x, w):
        return jnp.sin(checkpoint_name(jnp.sin(x @ w), "h")), None

    def loss(params, x):
        return jnp.sum(jax.lax.scan(layer, x, params)[0])

    params, x = jax.ShapeDtypeStruct((6, 256, 256), jnp.float32), jax.ShapeDtypeStruct((512, 256), jnp.float32)
    return jax.jit(jax.grad(loss)).trace(params, x)


OTHERS = {name: sharded for name in ("sharded_data", "sharded_fsdp", "sharded_tensor", "sharded_experts", "sharded_pipeline")}


def make(name):
    from gapless._estimate.cards import card
    from gapless._jax.ahead import Compiler, prepare
    from gapless._jax.watch import Watch, install

    os.environ["XLA_FLAGS"] = "--xla_dump_hlo_as_text"
    count = 8 if name in OTHERS else 1
    dumps = prepare(count)
    compiler = Compiler(card("h200"), count, dumps)
    if name in ONE + FULL:
        watch = Watch(compiler, 1)
        install(watch)
        sys.argv = ["programs.py", *(["--sample"] if name in ONE else []), name]
        runpy.run_path(str(PROGRAMS / "programs.py"), run_name="__main__")
        program = max(watch.programs.values(), key=lambda program: program.peak)
    else:
        traced = offloaded() if name == "offloaded" else sharded(name)
        program = compiler.compile(traced.lower(lowering_platforms=("cuda",)), name)
    import jax

    for ending in (".hlo.pb", "-live-range.txt"):
        data = pathlib.Path(program.dump.replace(".hlo.pb", ending)).read_bytes()
        target = HERE / f"{name}.{ending[1:]}.gz"
        target.write_bytes(gzip.compress(data, 9, mtime=0))
    file = HERE / "memory.json"
    rows = json.loads(file.read_text()) if file.exists() else {}
    keys = ("arguments", "outputs", "aliased", "temporaries", "peak", "host")
    rows[name] = {**{key: getattr(program, key) for key in keys}, "jax": jax.__version__}
    file.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
    print(name, rows[name], flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        make(sys.argv[1])
    else:
        for name in sys.argv[1:] or [*ONE, *FULL, *OTHERS, "offloaded"]:
            subprocess.run([sys.executable, __file__, name], check=False)
