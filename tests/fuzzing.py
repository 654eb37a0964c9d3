"""Shared by the fuzz tests: the number of inputs, the edits of a good input, the allowed outcomes.

Not a test file. `FLOATER_FUZZ_EXAMPLES=N` makes about N random inputs over all targets. Without it, the few
thousand of a normal run are the same every time. `--tables` prints how many each target got (`tally.py`).
"""

import contextlib
import functools
import io
import os
import time

import tally
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_floater.cli import USER_ERRORS, main
from fairseq_floater.errors import one_line

ASKED = "FLOATER_FUZZ_EXAMPLES" in os.environ
TOTAL = int(os.environ.get("FLOATER_FUZZ_EXAMPLES", 2_000))
# Limit of CPU seconds for one input; most take 0.01.
MOST_SECONDS = 10


def inputs(target, share, *examples, **strategies):
    """Run a test on ``share`` thousandths of the inputs, counted for ``target``.

    The test returns whether its input was accepted. ``examples`` are decorators that add fixed inputs.
    """

    def decorate(test):
        @functools.wraps(test)
        def counted(*fixtures, **words):
            tally.count("inputs", target, "tried")
            start = time.process_time()
            tally.count("inputs", target, "accepted", bool(test(*fixtures, **words)))
            assert time.process_time() - start < MOST_SECONDS

        run = given(**strategies)(counted)
        for example in examples:
            run = example(run)
        return settings(
            max_examples=max(15, round(share * TOTAL / 1000)),
            deadline=None,
            derandomize=not ASKED,
            database=None,
            suppress_health_check=list(HealthCheck),
        )(run)

    return decorate


# Spoiling bytes.

ODD_BYTES = (
    *(b"\xff", b"\0", b"\r\n", b"\n", b"\n\n", b"\t", b" ", b"", b"\xef\xbb\xbf", b"\x1b[31m"),
    *(b"nan", b"-inf", b"1e999", b"9" * 30, b"-1", b"0", b"a" * 3000, b"x " * 2000),
    *(b"\xe2\x80\xa8", b"\xe2\x96\x81", b"@@ ", b"\xc2\x85"),
    *(b"D-999999999999\t-1\tx\n", b"S-0\tx\n", b"P-0\t\n", b"H-0\t0\t\n", b"{", b'"'),
    *(b": ", b"- ", b"&a ", b"*a", b"<<: *a", b"!!python/name:os.system", b"? ", b"| "),
    *(b"$(touch x)", b"`touch x`", b"'", b"..", b"/", b"\\", b"%s", b"{0}", b"null", b"true"),
)
_place = st.integers(0, 2**20)
EDITS = st.lists(
    st.tuples(
        st.sampled_from(("drop", "double", "swap", "cut", "insert", "replace", "flip", "number")),
        _place,
        _place,
        st.sampled_from(ODD_BYTES) | st.binary(max_size=6),
    ),
    min_size=1,
    max_size=4,
)


def spoilt(data, edits):
    """Return ``data`` after every edit: (kind, a place, another place, odd bytes)."""
    for kind, first, second, odd in edits:
        lines = data.split(b"\n")
        i, j = first % len(lines), second % len(lines)
        at = first % (len(data) + 1)
        if kind == "drop":
            del lines[i]
        elif kind == "double":
            lines.insert(j, lines[i])
        elif kind == "swap":
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == "number":  # replaces a word between tabs or spaces
            words = lines[i].replace(b"\t", b" \t ").split(b" ")
            words[second % len(words)] = odd
            lines[i] = b" ".join(words).replace(b" \t ", b"\t")
        if kind in ("drop", "double", "swap", "number"):
            data = b"\n".join(lines)
        elif kind == "cut":
            data = data[:at]
        elif kind == "insert":
            data = data[:at] + odd + data[at:]
        elif kind == "replace":
            data = data[:at] + odd + data[at + len(odd) :]
        elif data:
            at %= len(data)
            data = data[:at] + bytes([data[at] ^ (1 << second % 8)]) + data[at + 1 :]
    return data


# Allowed outcomes of an input.


def call(*words):
    """Run `floater WORDS` in this process: (exit code, stdout, stderr). Other exceptions pass through."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:  # argparse
            code = end.code
    return code, out.getvalue(), err.getvalue()


def accepted(*words, names=()):
    """Return whether `floater WORDS` succeeds; if not, check for one sentence that has one of ``names``."""
    code, _, err = call(*words)
    assert "Traceback" not in err
    if code == 0:
        return True
    assert code in (1, 2), (code, err)
    if code == 2 and err.startswith("usage:"):
        return False  # argparse's own sentence, under the usage
    sentence = err.rstrip("\n").split("\n")[-1]
    check_sentence(sentence, names)
    assert sentence.startswith(f"floater {words[0]}"), sentence
    return False


def unrefused(function, *args, names=(), **options):
    """Return whether a function takes its input; if not, check for a user's error in one sentence."""
    try:
        function(*args, **options)
    except USER_ERRORS as error:
        assert not isinstance(error, UnicodeError), error
        check_sentence(one_line(error), names)
        return False
    return True


def check_sentence(text, names=()):
    """Check that ``text`` ends like a sentence, is short, and has one of ``names``."""
    assert text.endswith((".", "?", "!", ")")), text
    assert len(text) < 1500, text
    assert not names or any(str(name) in text for name in names), text


# Good input that several tests spoil.

LANGS = ("en", "de")
PIECES = "".join(
    f"\u2581{'ab' * (i % 3 + 1)} \u2581c{i}" + " \u2581d" * (i % 7) + "\n" for i in range(12)
)


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
