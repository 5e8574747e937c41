"""Layers in one scan, made again in the backward pass: `gapless estimate --jax scan_layers.py --device h100`."""

import jax
import jax.numpy as jnp
import optax


def layer(x, weights):                                    # one layer; its weights have no layer axis here
    with jax.named_scope("mlp"):
        return x + jax.nn.gelu(x @ weights["up"]) @ weights["down"], None

def loss(params, x):
    y, _ = jax.lax.scan(jax.checkpoint(layer), x, params)  # all layers in one loop, made again backwards
    return jnp.mean(y ** 2)

optimizer = optax.adamw(1e-3)

@jax.jit
def step(params, state, x):
    updates, state = optimizer.update(jax.grad(loss)(params, x), state, params)
    return optax.apply_updates(params, updates), state

params = {"up": jnp.zeros((12, 2048, 8192)), "down": jnp.zeros((12, 8192, 2048))}
state = optimizer.init(params)
for _ in range(3):
    params, state = step(params, state, jnp.ones((8192, 2048)))
