"""`python -m benchmarks`: see `suite`."""

import sys

from benchmarks.suite import main

sys.exit(main())
