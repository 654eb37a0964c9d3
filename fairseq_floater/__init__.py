"""fairseq_floater: what `--user-dir` loads.

Importing it registers the ``floater_transformer`` architectures with fairseq and allow-lists what a
safe load of fairseq's checkpoints needs. ``floater user-dir`` prints this folder.
With ``FLOATER_SAVE_ON_SIGTERM=1`` in the environment a training saves when it is told to stop.
"""

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_floater.requirements import check_fairseq, check_python
from fairseq_floater.version import __version__ as __version__

if TYPE_CHECKING:
    from fairseq_floater.transformer.translation import (
        FloaterTransformerModel as FloaterTransformerModel,
    )

check_python()

# Importing fairseq logs that tensorboardX, which it needs for speech only, is missing.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)


def _is_own_command() -> bool:
    """`floater ...` or `python -m fairseq_floater...`: these import what they need of the package.

    Most need neither torch nor fairseq, whose import takes seconds.
    """
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":  # as long as Python looks for the module
        module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
        return module.split(".")[0] == __name__
    return Path(program).name == "floater"


def _register() -> None:
    check_fairseq()
    from fairseq_floater.checkpoints.reading import allow_fairseq_checkpoints
    from fairseq_floater.transformer import translation  # noqa: F401  registers them

    allow_fairseq_checkpoints()
    if os.environ.get("FLOATER_SAVE_ON_SIGTERM") == "1":
        from fairseq_floater.checkpoints import preemption

        preemption.install()


def __getattr__(name: str) -> Any:
    if name == "FloaterTransformerModel":
        from fairseq_floater.transformer import translation

        return translation.FloaterTransformerModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not _is_own_command():
    _register()
