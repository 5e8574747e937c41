"""What can go wrong, as types: mistakes of the caller are exceptions, a machine that cannot do it is a warning."""


class GaplessError(RuntimeError):
    """Something was asked for that cannot be; the message says what to do instead."""


class OptionError(GaplessError, ValueError):
    """An option that does not exist, or a value that it cannot have."""


class GaplessWarning(UserWarning):
    """The program goes on, with less than was asked for."""
