"""What travels between roles."""

import os

# gRPC's own way with a user's forks works only while no call runs, and says at each fork that it does not; `forks` has
# ours. gRPC reads this when it is imported, which the modules of this package do.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
