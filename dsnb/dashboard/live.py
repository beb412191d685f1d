"""What Jupyter's proxy runs with `panel serve` (see `dsnb.dashboard.proxy`): the application, and nothing else."""

from dsnb.dashboard.app import serve_here

serve_here()
