"""Thirty programs in plain jax, each as people write them: parameters, a compiled step, three calls of it.

    python programs.py NAME            runs one on the machine's device
    python programs.py --list          the names; programs_set_aside.py has some
    python programs.py --sample NAME   the same program with small sizes
"""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import models as m

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def repeat(step, state, *rest, times=3):
    """Calls `step` so that each state takes the place of the one before."""
    for _ in range(times):
        state, out = step(state, *rest)
    jax.block_until_ready((state, out))


def tokens(batch, length, vocabulary):
    return jax.random.randint(jax.random.key(1), (batch, length), 0, vocabulary)


def train(loss, adam=True):
    """A step of training over (params, optimizer state)."""

    def step(state, *batch):
        params, opt = state
        value, grads = jax.value_and_grad(loss)(params, *batch)
        if adam:
            params, opt = m.adam(grads, opt, params)
        else:
            params = m.sgd(grads, params)
        return (params, opt), value

    return step


def gpt(size, batch, length, layers, width, vocabulary=50257, donate=False, adam=True, dtype=jnp.float32, stacked=False, wrap=None, experts=0):
    if size == "sample":
        batch, length, layers, width, vocabulary = 2, 64, 2, 128, 512
    init = jax.jit(partial(m.lm_init, vocabulary=vocabulary, width=width, layers=layers, length=length, dtype=dtype, stacked=stacked, experts=experts))
    params = init(jax.random.key(0))
    opt = m.adam_init(params) if adam else ()

    def loss(params, x):
        return m.cross_entropy(m.lm(params, x, width // 64, stacked, wrap), jnp.roll(x, -1, 1))

    step = jax.jit(train(loss, adam), donate_argnums=(0,) if donate else ())
    repeat(step, (params, opt), tokens(batch, length, vocabulary))


@program
def mlp_sgd(size):
    width, batch = (512, 64) if size == "sample" else (8192, 16384)
    params = m.mlp_init(jax.random.key(0), [width] * 5)
    x = jnp.ones((batch, width))
    step = jax.jit(train(lambda p, x: jnp.mean(m.mlp(p, x) ** 2), adam=False))
    repeat(step, (params, ()), x)


@program
def mlp_adam_bf16(size):
    width, batch = (512, 64) if size == "sample" else (6144, 32768)
    params = m.mlp_init(jax.random.key(0), [width] * 7, jnp.bfloat16)
    x = jnp.ones((batch, width), jnp.bfloat16)
    step = jax.jit(train(lambda p, x: jnp.mean(m.mlp(p, x).astype(jnp.float32) ** 2)), donate_argnums=0)
    repeat(step, (params, m.adam_init(params)), x)


@program
def gpt_kept(size):
    gpt(size, 8, 1024, 6, 768)


@program
def gpt_donated(size):
    gpt(size, 8, 1024, 6, 768, donate=True)


@program
def gpt_remat(size):
    gpt(size, 8, 1024, 6, 768, donate=True, wrap=jax.checkpoint)


@program
def gpt_scan(size):
    gpt(size, 8, 1024, 12, 768, donate=True, stacked=True)


@program
def gpt_scan_remat(size):
    gpt(size, 16, 1024, 12, 768, donate=True, stacked=True, wrap=jax.checkpoint)


@program
def gpt_scan_dots(size):
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    gpt(size, 8, 1024, 12, 768, donate=True, stacked=True, wrap=partial(jax.checkpoint, policy=policy))


@program
def gpt_bf16_donated(size):
    gpt(size, 16, 1024, 6, 1024, donate=True, dtype=jnp.bfloat16)


@program
def gpt_wide_sgd(size):
    gpt(size, 4, 512, 4, 2048, adam=False, donate=True)


@program
def gpt_forward(size):
    batch, length, layers, width, vocabulary = (2, 64, 2, 128, 512) if size == "sample" else (16, 1024, 12, 1024, 32000)
    params = jax.jit(partial(m.lm_init, vocabulary=vocabulary, width=width, layers=layers, length=length, dtype=jnp.bfloat16))(jax.random.key(0))
    forward = jax.jit(lambda p, x: m.lm(p, x, width // 64))
    x = tokens(batch, length, vocabulary)
    for _ in range(3):
        out = forward(params, x)
    jax.block_until_ready(out)


@program
def decode_cache(size):
    batch, length, layers, heads, width = (2, 64, 2, 2, 128) if size == "sample" else (64, 4096, 8, 16, 1024)
    params = jax.jit(lambda key: [m.block_init(k, width, jnp.bfloat16) for k in jax.random.split(key, layers)])(jax.random.key(0))
    cache = jnp.zeros((layers, 2, batch, length, heads, width // heads), jnp.bfloat16)

    @partial(jax.jit, donate_argnums=1)
    def step(params, cache, x, at):
        for i, p in enumerate(params):
            with jax.named_scope(f"layer_{i}"):
                q, k, v = (y.reshape(batch, 1, heads, -1) for y in jnp.split(m.norm(x, p["ln_1"]) @ p["qkv"], 3, axis=-1))
                cache = jax.lax.dynamic_update_slice(cache, jnp.stack([k, v])[None], (i, 0, 0, at, 0, 0))
                scores = jnp.einsum("bqhd,bkhd->bhqk", q, cache[i, 0])
                scores = jnp.where(jnp.arange(length) <= at, scores, -1e9)
                y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), cache[i, 1]).reshape(batch, 1, width)
                x = x + y @ p["out"]
                x = x + m.feed_forward(p, m.norm(x, p["ln_2"]))
        return cache, x

    x = jnp.ones((batch, 1, width), jnp.bfloat16)
    for at in range(4):
        cache, x = step(params, cache, x, at)
    x.block_until_ready()


@program
def moe_dense(size):
    gpt(size, 4, 512, 4, 768, vocabulary=32000, donate=True, experts=8)


@program
def moe_scan(size):
    gpt(size, 4, 512, 6, 768, vocabulary=32000, donate=True, experts=4, stacked=True, wrap=jax.checkpoint)


def resnet(size, batch, dtype, donate=True):
    batch, side = (2, 32) if size == "sample" else (batch, 224)
    params = jax.jit(partial(m.resnet_init, dtype=dtype))(jax.random.key(0))
    x, y = jnp.ones((batch, side, side, 3), dtype), jnp.zeros((batch,), jnp.int32)
    step = jax.jit(train(lambda p, x, y: m.cross_entropy(m.resnet(p, x), y)), donate_argnums=(0,) if donate else ())
    repeat(step, (params, m.adam_init(params)), x, y)


@program
def resnet_f32(size):
    resnet(size, 64, jnp.float32)


@program
def resnet_bf16(size):
    resnet(size, 192, jnp.bfloat16, donate=False)


@program
def unet(size):
    batch, side = (1, 32) if size == "sample" else (16, 256)
    params = jax.jit(m.unet_init)(jax.random.key(0))
    x = jnp.ones((batch, side, side, 3))
    step = jax.jit(train(lambda p, x: jnp.mean((m.unet(p, x) - x) ** 2)), donate_argnums=0)
    repeat(step, (params, m.adam_init(params)), x)


@program
def vit(size):
    batch, side, width, layers = (2, 64, 128, 2) if size == "sample" else (64, 224, 768, 8)
    patch = 16

    def init(key):
        k = jax.random.split(key, layers + 2)
        return {"patch": m.normal(k[0], (patch, patch, 3, width)), "head": m.normal(k[1], (width, 1000)), "blocks": [m.block_init(key, width) for key in k[2:]]}

    def loss(params, x, y):
        x = jax.lax.conv_general_dilated(x, params["patch"], (patch, patch), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = x.reshape(x.shape[0], -1, width)
        for p in params["blocks"]:
            x = m.block(p, x, width // 64)
        return m.cross_entropy(jnp.mean(x, 1) @ params["head"], y)

    params = jax.jit(init)(jax.random.key(0))
    step = jax.jit(train(loss), donate_argnums=0)
    repeat(step, (params, m.adam_init(params)), jnp.ones((batch, side, side, 3)), jnp.zeros((batch,), jnp.int32))


@program
def lstm(size):
    batch, length, width = (2, 16, 64) if size == "sample" else (256, 512, 1024)
    params = {"x": m.normal(jax.random.key(0), (width, 4 * width)), "h": m.normal(jax.random.key(1), (width, 4 * width))}

    def loss(params, x):
        def cell(carry, x):
            h, c = carry
            i, f, g, o = jnp.split(x @ params["x"] + h @ params["h"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((batch, width))
        return jnp.mean(jax.lax.scan(cell, (zero, zero), x)[1] ** 2)

    step = jax.jit(train(loss))
    repeat(step, (params, m.adam_init(params)), jnp.ones((length, batch, width)))


@program
def state_space(size):
    batch, length, width = (2, 64, 64) if size == "sample" else (16, 4096, 1024)
    params = {"a": jnp.full((width,), 0.9), "in": m.normal(jax.random.key(0), (width, width)), "out": m.normal(jax.random.key(1), (width, width))}

    def loss(params, x):
        b = x @ params["in"]
        a = jnp.broadcast_to(params["a"], b.shape)
        _, h = jax.lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), (a, b), axis=1)
        return jnp.mean((h @ params["out"]) ** 2)

    step = jax.jit(train(loss), donate_argnums=0)
    repeat(step, (params, m.adam_init(params)), jnp.ones((batch, length, width)))


@program
def accumulated(size):
    batch, length, layers, width, vocabulary, parts = (4, 64, 2, 128, 512, 2) if size == "sample" else (32, 512, 4, 768, 32000, 8)
    params = jax.jit(partial(m.lm_init, vocabulary=vocabulary, width=width, layers=layers, length=length))(jax.random.key(0))

    def loss(params, x):
        return m.cross_entropy(m.lm(params, x, width // 64), jnp.roll(x, -1, 1))

    def step(state, x):
        params, opt = state

        def part(total, x):
            value, grads = jax.value_and_grad(loss)(params, x)
            return jax.tree.map(jnp.add, total, grads), value

        grads, values = jax.lax.scan(part, jax.tree.map(jnp.zeros_like, params), x.reshape(parts, -1, length))
        return m.adam(grads, opt, params), jnp.mean(values)

    repeat(jax.jit(step, donate_argnums=0), (params, m.adam_init(params)), tokens(batch, length, vocabulary))


@program
def large_vocabulary(size):
    rows, width, vocabulary = (64, 64, 1000) if size == "sample" else (8192, 1024, 128256)
    params = {"head": m.normal(jax.random.key(0), (width, vocabulary), jnp.bfloat16)}
    x, y = jnp.ones((rows, width), jnp.bfloat16), jnp.zeros((rows,), jnp.int32)
    step = jax.jit(train(lambda p, x, y: m.cross_entropy(x @ p["head"], y), adam=False), donate_argnums=0)
    repeat(step, (params, ()), x, y)


@program
def chunked_vocabulary(size):
    rows, width, vocabulary, parts = (64, 64, 1000, 4) if size == "sample" else (16384, 1024, 128256, 16)
    params = {"head": m.normal(jax.random.key(0), (width, vocabulary), jnp.bfloat16)}

    def loss(params, x, y):
        part = jax.checkpoint(lambda a: m.cross_entropy(a[0] @ params["head"], a[1]))
        return jnp.mean(jax.lax.map(part, (x.reshape(parts, -1, width), y.reshape(parts, -1))))

    x, y = jnp.ones((rows, width), jnp.bfloat16), jnp.zeros((rows,), jnp.int32)
    repeat(jax.jit(train(loss, adam=False)), (params, ()), x, y)


@program
def per_example(size):
    batch, width = (4, 64) if size == "sample" else (64, 1024)
    params = m.mlp_init(jax.random.key(0), [width] * 4)
    norms = jax.jit(lambda p, x: jax.tree.map(lambda g: jnp.clip(g, -1, 1).mean(0), jax.vmap(jax.grad(lambda p, x: jnp.sum(m.mlp(p, x) ** 2)), (None, 0))(p, x)))
    for _ in range(3):
        out = norms(params, jnp.ones((batch, 1, width)))
    jax.block_until_ready(out)


@program
def solve(size):
    batch, n = (2, 64) if size == "sample" else (8, 4096)
    a = jnp.eye(n) + jnp.ones((batch, n, n)) / n
    f = jax.jit(lambda a, b: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(a), True), b))
    for _ in range(3):
        out = f(a, a)
    out.block_until_ready()


@program
def fourier(size):
    batch, n = (2, 256) if size == "sample" else (256, 1 << 18)
    x = jnp.ones((batch, n))
    f = jax.jit(lambda x, k: jnp.fft.irfft(jnp.fft.rfft(x, 2 * n) * jnp.fft.rfft(k, 2 * n), 2 * n)[:, :n])
    for _ in range(3):
        out = f(x, x[0])
    out.block_until_ready()


@program
def sorting(size):
    n = 1 << 10 if size == "sample" else 1 << 27
    keys = jax.random.bits(jax.random.key(0), (n,))
    f = jax.jit(lambda k: jax.lax.sort((k, jnp.arange(k.shape[0])), num_keys=1))
    for _ in range(3):
        out = f(keys)
    jax.block_until_ready(out)


@program
def top_k(size):
    batch, n = (4, 1000) if size == "sample" else (4096, 50257)
    f = jax.jit(lambda x: jax.lax.top_k(x, 50))
    x = jax.random.normal(jax.random.key(0), (batch, n))
    for _ in range(3):
        out = f(x)
    jax.block_until_ready(out)


@program
def loop(size):
    n = 64 if size == "sample" else 16384
    x = jnp.ones((n, n))
    f = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda i, x: 0.25 * (jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) + jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1)), x))
    for _ in range(3):
        x = f(x)
    x.block_until_ready()


@program
def several_programs(size):
    """Training and evaluation by turns, with arrays that stay from one to the next."""
    width, batch = (256, 64) if size == "sample" else (4096, 32768)
    params = m.mlp_init(jax.random.key(0), [width] * 5)
    step = jax.jit(train(lambda p, x: jnp.mean(m.mlp(p, x) ** 2)), donate_argnums=0)
    evaluate = jax.jit(lambda p, x: m.mlp(p, x))
    state, kept = (params, m.adam_init(params)), []
    x = jnp.ones((batch, width))
    for _ in range(3):
        state, _ = step(state, x)
        kept.append(evaluate(state[0], x))
    jax.block_until_ready(kept)


@program
def segments(size):
    edges, nodes, width = (1000, 100, 16) if size == "sample" else (1 << 22, 1 << 18, 128)
    params = {"w": m.normal(jax.random.key(0), (width, width))}
    source = jax.random.randint(jax.random.key(1), (edges,), 0, nodes)
    target = jax.random.randint(jax.random.key(2), (edges,), 0, nodes)

    def loss(p, x, s, t):
        return jnp.mean(jax.nn.relu(jax.ops.segment_sum((x @ p["w"])[s], t, nodes)) ** 2)

    repeat(jax.jit(train(loss)), (params, m.adam_init(params)), jnp.ones((nodes, width)), source, target)


@program
def equinox_mlp(size):
    """A module of equinox trained by optax, if they are installed."""
    import equinox as eqx
    import optax

    width, batch, depth = (64, 32, 2) if size == "sample" else (4096, 16384, 6)
    model = eqx.nn.MLP(width, width, width, depth, key=jax.random.key(0))
    chain = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    opt = chain.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit(donate="all-except-first")
    def step(x, model, opt):
        value, grads = eqx.filter_value_and_grad(lambda f: jnp.mean(jax.vmap(f)(x) ** 2))(model)
        updates, opt = chain.update(grads, opt, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), opt, value

    x = jnp.ones((batch, width))
    for _ in range(3):
        model, opt, value = step(x, model, opt)
    value.block_until_ready()


if __name__ == "__main__":
    words = sys.argv[1:]
    if words == ["--list"]:
        print("\n".join(PROGRAMS))
    else:
        PROGRAMS[words[-1]]("sample" if words[0] == "--sample" else "full")
