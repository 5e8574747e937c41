"""`gapless.jax.choose` on real jax, without a card: is each answer the largest that fits, and what did it take?

    python choose.py [BUDGET]

A small GPT, with the policies of `gapless.jax.remat` and two that change nothing: one that keeps a name that no value
has (it is `full`), and one that XLA undoes. Then the size after each answer is compiled. Ends with 1 if an answer is
wrong, if a policy that changes nothing is not said to, or if a combination took more than 4 compilations.
"""

import os
import sys
from functools import partial

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.environ.get("GAPLESS_PACKAGE", os.path.join(HERE, "../../../python"))]

import gapless.jax  # noqa: E402

POLICIES = ["none", "dots", "dots_no_batch", "full", "no_such_name", "undone"]
WIDTH, LAYERS, LENGTH, VOCABULARY = 128, 2, 256, 2048


def wrapped(remat, function):
    import jax

    if remat == "no_such_name":
        return jax.checkpoint(function, policy=jax.checkpoint_policies.save_only_these_names("misspelt"))
    if remat == "undone":
        # XLA joins what is computed twice unless it is kept from it.
        return jax.checkpoint(function, prevent_cse=False)
    return gapless.jax.remat(remat, function)


def make(batch, remat):
    import jax
    import jax.numpy as jnp
    import models as m

    params = jax.eval_shape(partial(m.lm_init, vocabulary=VOCABULARY, width=WIDTH, layers=LAYERS, length=LENGTH), jax.random.key(0))

    def step(state, x):
        params, opt = state
        value, grads = jax.value_and_grad(lambda p: m.cross_entropy(m.lm(p, x, WIDTH // 64, False, partial(wrapped, remat)), jnp.roll(x, -1, 1)))(params)
        return m.adam(grads, opt, params), value

    return jax.jit(step, donate_argnums=0), (params, jax.eval_shape(m.adam_init, params)), jax.ShapeDtypeStruct((batch, LENGTH), "int32")


budget = (sys.argv[1:] or ["512MiB"])[0]
found = gapless.jax.choose(make, batch=range(1, 257), remat=POLICIES, budget=budget)
print(found)
bad = []
for answer in found.answers:
    remat, batch = answer.settings["remat"], answer.settings["batch"]
    if answer.same_as is None:
        took = sum(c.seconds > 0 and c.settings["remat"] == remat for c in found.tried)
        after = gapless.jax.choose(lambda **words: make(**words), batch=[batch + 1], remat=[remat], budget=budget).tried[0]
        print(f"{remat}: {took} compilations; batch {batch + 1} takes {after.peak}, foretold {answer.next}")
        bad += [f"{remat}: batch {batch + 1} fits too"] if after.fits or not answer.fits else []
        bad += [f"{remat}: {took} compilations"] if took > 4 else []
bad += [f"{name} is not said to change nothing" for name in ("no_such_name", "undone") if not any(name in line for line in found.unchanged)]
print("\n".join(bad) or "all answers hold")
sys.exit(bool(bad))
