"""The suite that every substrate must pass, also one that somebody else wrote; docs/conformance.md.

>>> from rayroll.testing import conformance
>>> TestMine = conformance.suite(MineConfig())                    # pytest, one test per check
>>> report = await conformance.check(MineConfig())                # or a coroutine
$ python -m rayroll.testing.conformance mine                      # or a command
"""

from rayroll.testing.conformance import (  # noqa: F401 - each of them adds its checks to CHECKS
    commands,
    files,
    forgery,
    grading,
    isolation,
    kill,
    lease,
    life,
    output,
    reattach,
    sabotage,
    saving,
    state,
    timing,
)
from rayroll.testing.conformance._registry import CHECKS, Broken, Capability, Check, NotApplicable, expect, same
from rayroll.testing.conformance._registry import check as claim
from rayroll.testing.conformance._report import Report, Result
from rayroll.testing.conformance._run import check, suite

__all__ = [
    "CHECKS",
    "Broken",
    "Capability",
    "Check",
    "NotApplicable",
    "Report",
    "Result",
    "check",
    "claim",
    "expect",
    "same",
    "suite",
]
