"""The version, the same as the workspace's (python/tests/test_package.py compares them)."""

__version__ = "0.1.0"


def version() -> str:
    """The version of this package."""
    return __version__
