"""Estimates: the memory of a program on a card that need not be there.

`cards` finds the card's libraries and properties, `transport` sends a model to another process without its bytes,
`child` runs there over the card, with `control_values` beside it and `account` for the holders, `bars` says how far off
the figures may be, and `answer` is what comes back.
"""
