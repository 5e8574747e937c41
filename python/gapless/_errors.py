"""The package's errors: a mistake of the caller is an exception, a machine that is not supported is a warning."""


class GaplessError(RuntimeError):
    """Gapless cannot do what the program asked for. The message says what to do instead."""


class OptionError(GaplessError, ValueError):
    """The option does not exist, or cannot have this value."""


class GaplessWarning(UserWarning):
    """The program continues, with less than it asked for."""
