"""Commands in forks of this process, which has imported everything: an interpreter of their own
would take seconds to start. Signals, memory and the end of the process are as of any other."""

import contextlib
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping
from subprocess import TimeoutExpired

import torch

from ownbert.cli import main

# Those that Python hides from users; pytest shows them.
_HIDDEN = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
_SHOW = warnings.showwarning


class ForkedCommand:
    """``ownbert`` with the arguments, running; the methods are those of ``subprocess.Popen``.

    Args:
        arguments: as on the command line; anything but a string is made one.
        env: environment variables besides those that are there.
    """

    def __init__(self, *arguments: object, env: Mapping[str, str] | None = None) -> None:
        self._streams = [tempfile.TemporaryFile() for _ in ("out", "err")]  # noqa: SIM115
        self._written: tuple[str, str] | None = None
        self.returncode: int | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            self.pid = os.fork()
        if not self.pid:
            out, err = (stream.fileno() for stream in self._streams)
            run_and_exit([*map(str, arguments)], out, err, env=env or {})

    def output(self) -> tuple[str, str]:
        """What it has written so far to standard output and standard error."""
        if self._written is not None:
            return self._written
        # The place where the fork writes is left alone.
        numbers = [stream.fileno() for stream in self._streams]
        out, err = (os.pread(n, os.fstat(n).st_size, 0).decode(errors="replace") for n in numbers)
        return out, err

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
                self._written = self.output()
                for stream in self._streams:
                    stream.close()
        return self.returncode

    def wait(self, timeout: float = 600) -> int:
        """The exit code, when it has ended.

        Raises:
            TimeoutExpired: after so many seconds.
        """
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise TimeoutExpired("ownbert", timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = 600) -> tuple[str, str]:
        """What it has written when it has ended."""
        self.wait(timeout)
        return self.output()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_and_exit(arguments: list[str], out: int, err: int, *, env: Mapping[str, str]) -> None:
    """In a fork: the command, with its output in two files; never returns."""
    code = 70
    try:
        # The threads of libraries are not in a fork.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        torch.set_num_threads(1)
        os.environ.update(env)
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
            os.dup2(file, number)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
        warnings.resetwarnings()
        for hidden in _HIDDEN:
            warnings.simplefilter("ignore", hidden)
        warnings.showwarning = _SHOW
        # A shell that starts something in the background has it ignore the first of these.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.argv = ["ownbert", *arguments]
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError):  # it was closed
                stream.flush()
        os._exit(code)
