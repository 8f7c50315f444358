"""The test bed is no package of rayroll: its folder is put on the path as `testbed` itself does it.

This folder as well, for what its tests share.
"""

import sys
from pathlib import Path

from requirements import pytest_runtest_makereport as pytest_runtest_makereport

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent)]
