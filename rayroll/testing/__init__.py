"""What tests of rayroll and of its extensions are made with: the conformance suite, leak checks, live sandboxes."""

from rayroll.testing.sandboxes import Live, open_sandbox

__all__ = ["Live", "open_sandbox"]
