"""Start Python without the five seconds in which a new process imports torch and fairseq.

Not a test file. :func:`python` returns a command that replaces ``sys.executable``. It runs scripts, and
modules of fairseq, torchrun and this package, in forks of a process that has imported the slow packages
but nothing of this package. A fork has its own arguments, environment, folder, descriptors and exit code,
and so has what it starts through its own ``sys.executable``. Signals are passed on; a kill ends both. Python
itself runs everything else. Run as a script, this file is the process that is forked.
"""

import atexit
import copy
import fcntl
import functools
import gc
import importlib
import inspect
import json
import logging
import os
import random
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from pathlib import Path
from types import SimpleNamespace

# Making the first optimiser imports torch._dynamo, which takes two seconds.
PRELOADED = ("matplotlib.pyplot", "fairseq.trainer", "fairseq.sequence_generator", "torch._dynamo")
PRELOADED += ("torch.distributed.run", "torchdiffeq", "sacrebleu", "sentencepiece")


@functools.cache
def python():
    """Start the process to fork from; return the path of the command that asks it for forks."""
    folder = tempfile.mkdtemp(prefix="warm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    own = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    own |= {"PYTHONIOENCODING": "utf-8", "PYTHONWARNINGS": "ignore"}
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    server = subprocess.Popen(
        [sys.executable, "-sP", __file__, folder],
        stdin=subprocess.PIPE,  # closing it ends the process
        stdout=subprocess.PIPE,
        env=environment | own,
        start_new_session=True,
    )
    atexit.register(server.stdin.close)  # keeps it open until then
    assert server.stdout.readline() == b"ready\n"
    command = Path(folder) / "python"
    client = shlex.join([sys.executable, "-IS", str(Path(__file__).with_name("warm_client.py"))])
    command.write_text(f'#!/bin/sh\nexec {client} {folder} "$@"\n')
    command.chmod(0o755)
    return str(command)


def quicken_hydra(replace=setattr):
    """Halve the time in which Hydra composes a configuration; the configuration stays the same."""
    from hydra._internal import config_repository, utils
    from hydra.core.override_parser.overrides_parser import OverridesParser

    def stack():  # Hydra reads the file and the function of one caller; inspect reads sources too
        frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
        names = [(frame.f_code.co_filename, 0, frame.f_code.co_name) for frame in frames]
        return [inspect.FrameInfo(f, *n, None, None) for f, n in zip(frames, names, strict=True)]

    parse = functools.cache(functools.partial(OverridesParser.parse_rule, OverridesParser.create()))
    replace(utils, "inspect", SimpleNamespace(**{**vars(inspect), "stack": stack}))
    replace(config_repository, "copy", SimpleNamespace(deepcopy=copy.copy))
    replace(OverridesParser, "parse_rule", lambda _, text, rule: parse(text, rule))


def compose():
    """Compose one configuration, as every command of fairseq does first; forks share what that leaves."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    quicken_hydra()
    argv = ["data", "--arch", "transformer_tiny"]
    args = options.parse_args_and_arch(options.get_training_parser(), argv)
    convert_namespace_to_omegaconf(args)


def serve(folder):
    """Fork for every caller; in the forked processes, return the words to run."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{folder}/socket")
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)
        caller, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return accompanied(caller)
        caller.close()


def accompanied(caller):
    """Fork the command; the parent passes on the caller's signals and the command's exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, descriptors, _, _ = socket.recv_fds(caller, 1 << 20, 250)
    request = json.loads(message)
    command = os.fork()
    if command == 0:
        caller.close()
        return become(request, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(command)
    while ended not in select.select([ended, caller], [], [])[0]:
        asked = caller.recv(1)
        if asked:
            os.kill(command, asked[0])
        else:  # the caller was killed
            os.killpg(command, signal.SIGKILL)
            break
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    try:
        caller.send(code.to_bytes(2, "big", signed=True))
    finally:
        os._exit(0)


def become(request, descriptors):
    """Take over the caller's descriptors, environment, folder and signals; return the words to run."""
    os.setsid()
    free = max(request["descriptors"]) + 1
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, free) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(aside, request["descriptors"], strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    of_folder = request["words"][0] in ("-m", "-c") and not os.environ.get("PYTHONSAFEPATH")
    before = [request["folder"]] if of_folder else []
    sys.path[:0] = before + os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.executable = request["python"]
    sys.orig_argv = [sys.executable, *request["words"]]
    random.seed()
    return request["words"]


def run(words):
    """Run what a command line asks Python for; return the exit code."""
    sys.argv = words[1:] if words[0] == "-m" else ["-c", *words[2:]] if words[0] == "-c" else words
    try:
        if words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            exec(words[1], {"__name__": "__main__"})
        else:
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    compose()
    logging.root.handlers.clear()  # a message of fairseq's at its import has added one
    gc.freeze()
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False  # a fork would take all of torch's operators apart
    code = run(serve(sys.argv[1]))
    # End as Python does, but without taking apart all that was imported.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
