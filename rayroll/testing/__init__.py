"""What tests of rayroll and of its extensions are made with: the conformance suite, leak checks, live sandboxes."""

from rayroll.testing.sandboxes import Live, open_sandbox

__all__ = ["Live", "conformance", "leaks", "open_sandbox"]


def __getattr__(name: str) -> object:
    # The suite is 2,000 lines that most tests do not need.
    if name in ("conformance", "leaks"):
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
