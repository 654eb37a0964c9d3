"""Register the model and its architectures with fairseq: this is what `--user-dir` loads.

Importing the package also allow-lists what a safe load of fairseq's checkpoints needs, and with
``FLOATER_SAVE_ON_SIGTERM=1`` in the environment lets a training save when it is told to stop.
``floater user-dir`` prints this folder.
"""

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_floater.requirements import check_fairseq, check_python
from fairseq_floater.version import __version__ as __version__

if TYPE_CHECKING:
    from fairseq_floater.transformer.roberta import FloaterRobertaModel as FloaterRobertaModel
    from fairseq_floater.transformer.translation import (
        FloaterTransformerModel as FloaterTransformerModel,
    )

_MODELS = {"FloaterTransformerModel": "translation", "FloaterRobertaModel": "roberta"}

check_python()

# Importing fairseq logs that tensorboardX, which it needs for speech only, is missing.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)


def _register() -> None:
    check_fairseq()
    from fairseq_floater.checkpoints.reading import allow_fairseq_checkpoints
    from fairseq_floater.transformer import (  # noqa: F401  registers them
        bert,
        question_answering,
        roberta,
        told_length,
        translation,
        windows,
    )

    allow_fairseq_checkpoints()
    if os.environ.get("FLOATER_SAVE_ON_SIGTERM") == "1":
        from fairseq_floater.checkpoints import preemption

        preemption.install()


def _is_own_command() -> bool:
    """Return whether this is `floater ...` or `python -m fairseq_floater...`."""
    if sys.argv[:1] == ["-m"]:  # as long as Python looks for the module
        module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
        return module.partition(".")[0] == __name__
    return Path(*sys.argv[:1]).name == "floater"


def __getattr__(name: str) -> Any:
    if name in _MODELS:
        _register()
        return getattr(importlib.import_module(f"{__name__}.transformer.{_MODELS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# To register is to import fairseq, which takes seconds. Whoever imports this package may use fairseq
# next, so it cannot wait; but our own command imports fairseq itself where a verb needs it.
if "fairseq" in sys.modules or not _is_own_command():
    _register()
