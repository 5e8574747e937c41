"""Estimates: the memory of a program on a card that need not be there.

`cards` finds the card's libraries and properties, `ship` sends a model to another process without its bytes, `child`
runs there over the card, with `values` beside it for control flow and `account` for the holders, `bars` says how far
off the figures may be, and `answer` is what comes back.
"""
