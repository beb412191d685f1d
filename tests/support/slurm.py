"""A SLURM of one node on this machine: munged, slurmctld and slurmd in a temporary folder, all ended afterwards."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.processes import is_running
from tests.support.requires import require, require_condition
from tests.support.waiting import wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "squeue", "sinfo")
CPUS = 8

# The node has as many processors as it claims (`config_overrides`), so that a test does not depend on the machine's.
_CONFIG = """\
ClusterName=dsnb
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=64000 State=UNKNOWN
PartitionName=cpu Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """A running SLURM; its programs find it by the variable `SLURM_CONF` of this process.

    Attributes:
        folder: Where its files are.
    """

    folder: Path

    def run(self, *command: str) -> str:
        """Run a program such as `squeue` and return what it prints."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr}{self.describe()}"
        return done.stdout.strip()

    def jobs(self) -> list[str]:
        """The ids of the jobs that are pending, running or completing."""
        return self.run("squeue", "--noheader", "--format=%i").split()

    def describe(self) -> str:
        """The ends of its logs, for a failure's text."""
        return "".join(f"\n--- {log.name}\n{log.read_text()[-2000:]}" for log in sorted(self.folder.glob("*.log")))


@contextmanager
def running_slurm() -> Iterator[Slurm]:
    """Start a SLURM and end it; the test is skipped where its programs are missing or the user is not root."""
    for program in PROGRAMS:
        require(program)
    require_condition(os.geteuid() == 0, "slurmd starts jobs, so it needs root")
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        config = _write_files(folder)
        patch.setenv("SLURM_CONF", str(config))
        slurm = Slurm(folder)
        stack.callback(_end_jobs, slurm)
        _start_daemons(folder, stack)
        try:
            wait_for(lambda: _node_state(slurm) == "idle", what="the node to be idle", timeout=60.0, every=0.2)
        except AssertionError as error:
            error.add_note(slurm.describe())
            raise
        yield slurm
        for job in slurm.jobs():
            slurm.run("scancel", job)
        wait_for(lambda: not slurm.jobs(), what="the jobs to end", timeout=60.0, every=0.2)


def _write_files(folder: Path) -> Path:
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    key, config = folder / "munge.key", folder / "slurm.conf"
    key.touch(mode=0o400)
    key.write_bytes(secrets.token_bytes(128))
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = one.getsockname()[1], other.getsockname()[1]
    host = socket.gethostname().partition(".")[0]
    text = _CONFIG.format(folder=folder, host=host, cpus=CPUS, controller_port=ports[0], node_port=ports[1])
    config.write_text(text)
    return config


def _start_daemons(folder: Path, stack: ExitStack) -> None:
    munged = [
        "munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket",
        f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.internal", f"--seed-file={folder}/munge.seed",
    ]  # fmt: skip
    _start(munged, folder, stack)
    wait_for((folder / "munge.socket").exists, what="munged to listen", timeout=30.0)
    _start(["slurmctld", "-D"], folder, stack)
    _start(["slurmd", "-D"], folder, stack)


def _start(command: list[str], folder: Path, stack: ExitStack) -> None:
    with (folder / f"{command[0]}.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=20)


def _node_state(slurm: Slurm) -> str:
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%t"], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.strip()


def _end_jobs(slurm: Slurm) -> None:
    """Wait until what slurmd started has ended: slurmstepd processes are children of no daemon."""
    marker = f"SLURM_CONF={slurm.folder}/slurm.conf".encode()
    mine = os.getpid()

    def left() -> list[int]:
        pids = (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit())
        return [pid for pid in pids if pid != mine and is_running(pid) and marker in _environment(pid)]

    wait_for(lambda: not left(), what="the processes of SLURM to end", timeout=60.0, every=0.1)


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it ended
        return []
