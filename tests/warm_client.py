"""Stand in for a process that `warm.py` forks. Imports little, because it starts often."""

# ruff: noqa: PTH109, PTH208  pathlib takes longer to import than all the rest

import contextlib
import json
import os
import signal
import socket
import sys

folder, *words = sys.argv[1:]
if words[0] == "-u":  # from torchrun; nothing here needs unbuffered output
    words.pop(0)
module = words[1].partition(".")[0] if words[0] == "-m" else ""
ours = module in ("fairseq_cli", "fairseq_floater", "benchmarks", "torch", "pytest")
ours |= words[0].endswith(".py")
if not ours and not (words[0] == "-c" and "fairseq_floater" in words[1]):
    os.execv(sys.executable, [sys.executable, *words])

descriptors = []
for name in os.listdir("/proc/self/fd"):
    with contextlib.suppress(OSError):  # listdir's own descriptor is closed by now
        os.fstat(int(name))
        descriptors.append(int(name))
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect(f"{folder}/socket")
caught = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
ignored = [number for number in caught if signal.getsignal(number) is signal.SIG_IGN]
request = {
    "python": f"{folder}/python",
    "words": words,
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "descriptors": descriptors,
    "ignored": ignored,
    "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
}
socket.send_fds(server, [json.dumps(request).encode()], descriptors)
for number in set(caught) - set(ignored):
    signal.signal(number, lambda number, _: server.send(bytes([number])))
code = int.from_bytes(server.recv(2), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    signal.raise_signal(-code)
os._exit(code)
