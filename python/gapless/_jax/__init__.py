"""Estimates of JAX programs without a card: each `jit` is compiled for the card that is named, by XLA itself."""
