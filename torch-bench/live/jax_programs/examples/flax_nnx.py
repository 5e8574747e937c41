"""A module of flax nnx with an optimizer of optax: `gapless estimate --jax flax_nnx.py --device h100`."""

import jax.numpy as jnp
import optax
from flax import nnx


class Net(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(4096, 16384, rngs=rngs)
        self.down = nnx.Linear(16384, 4096, rngs=rngs)
    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(x)))

model = Net(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

@nnx.jit
def step(model, optimizer, x):
    loss, gradients = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
    optimizer.update(model, gradients)
    return loss

for _ in range(3):
    step(model, optimizer, jnp.ones((8192, 4096)))
