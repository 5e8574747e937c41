"""An MLP of equinox that gives its arrays to each step: `gapless estimate --jax equinox_mlp.py --device h100`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

model = eqx.nn.MLP(4096, 4096, width_size=16384, depth=1, key=jax.random.key(0))
optimizer = optax.adamw(1e-3)
state = optimizer.init(eqx.filter(model, eqx.is_array))

@eqx.filter_jit(donate="all-except-first")
def step(x, model, state):
    gradients = eqx.filter_grad(lambda model: jnp.mean(jax.vmap(model)(x) ** 2))(model)
    updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state

for _ in range(3):
    model, state = step(jnp.ones((8192, 4096)), model, state)
