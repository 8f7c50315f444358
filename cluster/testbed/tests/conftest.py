"""The test bed is no package of rayroll: its folder is put on the path as `testbed` itself does it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
