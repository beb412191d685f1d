"""Lets `panel serve dashboard` work from a checkout; the application itself is `dsnb.dashboard`.

The service is the one that `DSNB_SERVICE` names (a name or an address), or the only one that runs.
"""

import sys
from pathlib import Path

# `panel serve` runs this file under a name of its own, with neither this folder nor the checkout on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsnb.dashboard.app import serve_here

serve_here()
