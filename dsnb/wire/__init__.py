"""Communication between clients, dispatcher and workers: calls, messages and security."""

import os

# gRPC's own fork support works only while no call runs, and logs a warning at each fork otherwise; `forks` replaces it.
# gRPC reads this variable when it is imported, and the modules of this package import it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
