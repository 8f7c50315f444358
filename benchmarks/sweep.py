#!/usr/bin/env python3
"""What does each substrate cost? The same bug-fix rollouts on all of them, in interleaved random blocks.

Prints progress and a table on stderr and one JSON document as the last line of stdout; see ``--help``. This is
``rayroll sweep`` as a script, for ``ray job submit --working-dir . -- benchmarks/sweep.py``.
"""

import sys

from rayroll.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "sweep")
    main()
