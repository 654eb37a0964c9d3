"""`python -m MODULE WORDS` without the five seconds in which a new process imports torch and fairseq.

Not a test file. A command is a process of its own, with its own arguments, environment, folder and exit
code, forked from one that has imported both and nothing of this package; the module runs as `__main__`.
What happens before that (options of Python itself), after it (`atexit`) and by signals needs a new process.
"""

import logging
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
# torch's optimisers import torch._dynamo, for two seconds, when the first one is made.
_CONTEXT.set_forkserver_preload(
    ["fairseq.trainer", "fairseq.sequence_generator", "torch._dynamo", "sacrebleu"]
)


def is_warm(command):
    """Whether ``command`` is one of fairseq's or ours, as ``python -m MODULE WORDS``."""
    module = command[2].partition(".")[0] if len(command) > 2 else ""
    return command[:2] == [sys.executable, "-m"] and module in ("fairseq_cli", "fairseq_floater")


def run(command, *, stdin, cwd, env, timeout):
    """Run ``python -m MODULE WORDS`` to its end, as :func:`subprocess.run` does."""
    _start_server(env)
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(stdin, encoding="utf-8")
        process = _CONTEXT.Process(target=_become, args=(command[2:], streams, cwd, env))
        process.start()
        try:
            process.join(timeout)
            if process.exitcode is None:
                raise subprocess.TimeoutExpired(command, timeout)
        finally:
            if process.exitcode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.join()
        output, messages = (path.read_text(encoding="utf-8") for path in streams[1:])
    return subprocess.CompletedProcess(command, process.exitcode, output, messages)


def _start_server(env):
    """Start the process that is forked, once, where it finds no GPU and one thread, as commands do."""
    before = dict(os.environ)
    os.environ.update(env)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _become(words, streams, cwd, env):
    """Be the command: in the forked process, which ends with all that it starts."""
    os.setsid()
    for number, path in enumerate(streams):
        flags = os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY
        os.dup2(os.open(path, flags), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  closed at the end
    if cwd is not None:
        os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    logging.root.handlers.clear()  # fairseq's own message at its import has made one
    sys.argv = ["-m", *words[1:]]
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
