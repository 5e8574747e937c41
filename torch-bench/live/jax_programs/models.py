"""Models in plain jax for the programs beside this file: parameters are nested dicts, a model is a function of them."""

import math
from functools import partial

import jax
import jax.numpy as jnp


def normal(key, shape, dtype=jnp.float32):
    return (jax.random.normal(key, shape) * 0.02).astype(dtype)


# ---- optimizers ----


def adam_init(params):
    return {"mu": jax.tree.map(jnp.zeros_like, params), "nu": jax.tree.map(jnp.zeros_like, params), "count": jnp.zeros((), jnp.int32)}


def adam(grads, state, params, rate=1e-3, b1=0.9, b2=0.95):
    count = state["count"] + 1
    mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state["mu"], grads)
    nu = jax.tree.map(lambda n, g: b2 * n + (1 - b2) * g * g, state["nu"], grads)
    scale = jnp.sqrt(1 - b2 ** count.astype(jnp.float32)) / (1 - b1 ** count.astype(jnp.float32))
    new = jax.tree.map(lambda p, m, n: (p - rate * scale * m / (jnp.sqrt(n) + 1e-8)).astype(p.dtype), params, mu, nu)
    return new, {"mu": mu, "nu": nu, "count": count}


def sgd(grads, params, rate=1e-2):
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


# ---- dense ----


def mlp_init(key, widths, dtype=jnp.float32):
    keys = jax.random.split(key, len(widths))
    return [{"kernel": normal(k, (a, b), dtype), "bias": jnp.zeros(b, dtype)} for k, a, b in zip(keys, widths, widths[1:])]


def mlp(params, x):
    for i, layer in enumerate(params):
        with jax.named_scope(f"layer_{i}"):
            x = x @ layer["kernel"] + layer["bias"]
            if i + 1 < len(params):
                x = jax.nn.gelu(x)
    return x


# ---- transformer ----


def block_init(key, width, dtype=jnp.float32, experts=0):
    k = jax.random.split(key, 5)
    ffn = (experts,) if experts else ()
    params = {
        "ln_1": jnp.ones(width, dtype),
        "ln_2": jnp.ones(width, dtype),
        "qkv": normal(k[0], (width, 3 * width), dtype),
        "out": normal(k[1], (width, width), dtype),
        "up": normal(k[2], (*ffn, width, 4 * width), dtype),
        "down": normal(k[3], (*ffn, 4 * width, width), dtype),
    }
    if experts:
        params["router"] = normal(k[4], (width, experts), dtype)
    return params


def norm(x, scale):
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def attention(params, x, heads):
    batch, length, width = x.shape
    q, k, v = jnp.split(x @ params["qkv"], 3, axis=-1)
    q, k, v = (y.reshape(batch, length, heads, width // heads) for y in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width // heads)
    mask = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, width) @ params["out"]


def feed_forward(params, x):
    return jax.nn.gelu(x @ params["up"]) @ params["down"]


def experts_of(params, x, top=2):
    gates = jax.nn.softmax((x @ params["router"]).astype(jnp.float32))
    chosen, index = jax.lax.top_k(gates, top)
    weight = jnp.zeros_like(gates).at[jnp.arange(x.shape[0])[:, None, None], jnp.arange(x.shape[1])[None, :, None], index].set(chosen)
    hidden = jax.nn.gelu(jnp.einsum("bld,edf->blef", x, params["up"]))
    return jnp.einsum("blef,efd,ble->bld", hidden, params["down"], weight.astype(x.dtype))


def block(params, x, heads):
    with jax.named_scope("attention"):
        x = x + attention(params, norm(x, params["ln_1"]), heads)
    with jax.named_scope("mlp"):
        mlp_of = experts_of if "router" in params else feed_forward
        return x + mlp_of(params, norm(x, params["ln_2"]))


def lm_init(key, vocabulary, width, layers, length, dtype=jnp.float32, stacked=False, experts=0):
    k = jax.random.split(key, layers + 2)
    if stacked:
        blocks = jax.vmap(lambda key: block_init(key, width, dtype, experts))(k[2:])
    else:
        blocks = {f"block_{i}": block_init(k[i + 2], width, dtype, experts) for i in range(layers)}
    return {"embed": normal(k[0], (vocabulary, width), dtype), "position": normal(k[1], (length, width), dtype), "blocks": blocks, "ln": jnp.ones(width, dtype)}


def lm(params, tokens, heads, stacked=False, wrap=None):
    step = partial(block, heads=heads)
    if wrap is not None:
        step = wrap(step)
    with jax.named_scope("transformer"):
        x = params["embed"][tokens] + params["position"][: tokens.shape[1]]
        if stacked:
            x, _ = jax.lax.scan(lambda x, p: (step(p, x), None), x, params["blocks"])
        else:
            for name, p in params["blocks"].items():
                with jax.named_scope(name):
                    x = step(p, x)
    with jax.named_scope("head"):
        return norm(x, params["ln"]) @ params["embed"].T


def cross_entropy(logits, labels):
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)


# ---- convolutions ----


def conv(x, kernel, stride=1):
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def resnet_init(key, widths=(64, 128, 256, 512), depth=2, classes=1000, dtype=jnp.float32):
    keys = iter(jax.random.split(key, 200))
    params = {"stem": normal(next(keys), (7, 7, 3, widths[0]), dtype), "stages": [], "head": normal(next(keys), (widths[-1], classes), dtype)}
    before = widths[0]
    for width in widths:
        stage = []
        for _ in range(depth):
            stage.append({
                "a": normal(next(keys), (3, 3, before, width), dtype),
                "b": normal(next(keys), (3, 3, width, width), dtype),
                "scale": jnp.ones(width, dtype),
                "skip": normal(next(keys), (1, 1, before, width), dtype),
            })
            before = width
        params["stages"].append(stage)
    return params


def resnet(params, x):
    x = jax.nn.relu(conv(x, params["stem"], 2))
    for i, stage in enumerate(params["stages"]):
        for j, p in enumerate(stage):
            with jax.named_scope(f"stage_{i}/block_{j}"):
                stride = 2 if i and not j else 1
                y = conv(jax.nn.relu(conv(x, p["a"], stride)), p["b"])
                mean = jnp.mean(y, (0, 1, 2), keepdims=True)
                y = (y - mean) * jax.lax.rsqrt(jnp.var(y, (0, 1, 2), keepdims=True) + 1e-5) * p["scale"]
                x = jax.nn.relu(y + conv(x, p["skip"], stride))
    return jnp.mean(x, (1, 2)) @ params["head"]


def unet_init(key, widths=(64, 128, 256), dtype=jnp.float32):
    keys = iter(jax.random.split(key, 40))
    down, up, before = [], [], 3
    for width in widths:
        down.append([normal(next(keys), (3, 3, before, width), dtype), normal(next(keys), (3, 3, width, width), dtype)])
        before = width
    for width in reversed(widths[:-1]):
        up.append([normal(next(keys), (3, 3, before + width, width), dtype), normal(next(keys), (3, 3, width, width), dtype)])
        before = width
    return {"down": down, "up": up, "out": normal(next(keys), (1, 1, before, 3), dtype)}


def unet(params, x):
    kept = []
    for a, b in params["down"]:
        x = jax.nn.silu(conv(jax.nn.silu(conv(x, a)), b))
        kept.append(x)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
    x = kept.pop()
    for a, b in params["up"]:
        batch, height, width, channels = x.shape
        x = jax.image.resize(x, (batch, height * 2, width * 2, channels), "nearest")
        x = jax.nn.silu(conv(jax.nn.silu(conv(jnp.concatenate([x, kept.pop()], -1), a)), b))
    return conv(x, params["out"])
