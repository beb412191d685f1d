"""`Command`: starts each worker with a command, such as `srun`, `ssh` or `kubectl run`."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dsnb.arguments import checked, each, short_repr, text
from dsnb.errors import FailedPreconditionError, InvalidArgumentError
from dsnb.launchers.launcher import LaunchedWorker, Launcher, OnExit
from dsnb.worker.config import WorkerConfig
from dsnb.worker.process import WorkerProcess

_PLACEHOLDER = "{arguments}"
_ARGUMENTS = ("--remote",)


def _argv(name: str, value: Any) -> tuple[str, ...]:
    words: Sequence[str] = each(text, hint='pass a list of words, as in ["srun", "-n1", ...]')(name, value)
    if not any(_PLACEHOLDER in word for word in words):
        raise InvalidArgumentError(
            f"`{name}` does not contain {_PLACEHOLDER}: {short_repr(list(words))}",
            hint=f'end it with "python", "-m", "dsnb.worker", "{_PLACEHOLDER}"',
        )
    return tuple(words)


@checked(argv=_argv)
@dataclass(frozen=True)
class Command(Launcher):
    """Starts each worker with a command that runs `python -m dsnb.worker {arguments}` somewhere.

    The command must connect its own standard input and output to those of the worker, as `srun`, `ssh` and
    `kubectl run -i` do: the worker gets its settings and the token there, so they are in no argument list. The worker
    ends when its standard input does.

    Args:
        argv: The words of the command. `{arguments}` stands for arguments that dsnb adds.

    Raises:
        InvalidArgumentError: the command has no `{arguments}`.

    Example:
        >>> Command(["srun", "-n1", "-c4", "python", "-m", "dsnb.worker", "{arguments}"])
        Command(argv=('srun', '-n1', '-c4', 'python', '-m', 'dsnb.worker', '{arguments}'))
    """

    name: ClassVar[str] = "a command"
    argv: Sequence[str]

    @checked(host=text)
    def check(self, host: str) -> None:
        """Find out whether the command exists.

        Args:
            host: The host on which the service is going to listen.

        Raises:
            FailedPreconditionError: its program is not installed here.
        """
        if shutil.which(self.argv[0]) is None:
            raise FailedPreconditionError(
                f"the program {self.argv[0]!r} was not found",
                did="nothing was started",
                hint=f"install it, or try the command in a terminal: {shlex.join(self.argv)}",
            )

    def launch(self, config: WorkerConfig, on_exit: OnExit) -> LaunchedWorker:
        """Start a worker; used by `dsnb.start` and `svc.scale`."""
        words = (word.replace(_PLACEHOLDER, " ".join(_ARGUMENTS)) for word in self.argv)
        process = WorkerProcess(tuple(words))
        process.start(config, on_exit)
        return process
