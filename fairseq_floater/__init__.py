"""Register the models and their architectures with fairseq, whose `--user-dir` loads this package.

Importing the package also allow-lists what a safe load of fairseq's checkpoints needs. Two variables of the
environment matter: ``FLOATER_USER_DIR`` names a user-dir of your own, which is imported too, and with
``FLOATER_SAVE_ON_SIGTERM=1`` a training saves a checkpoint when it gets SIGTERM. ``floater user-dir`` prints
this folder.
"""

import importlib
import logging
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_floater.requirements import check_fairseq, check_python
from fairseq_floater.version import __version__ as __version__

if TYPE_CHECKING:
    from fairseq_floater.transformer.language_model import (
        FloaterLanguageModel as FloaterLanguageModel,
    )
    from fairseq_floater.transformer.roberta import FloaterRobertaModel as FloaterRobertaModel
    from fairseq_floater.transformer.translation import (
        FloaterTransformerModel as FloaterTransformerModel,
    )
    from fairseq_floater.transformer.vectors import PositionedTransformer as PositionedTransformer

_YOUR_USER_DIR = os.environ.get("FLOATER_USER_DIR")
_MODELS = {
    "FloaterTransformerModel": "translation",
    "FloaterLanguageModel": "language_model",
    "FloaterRobertaModel": "roberta",
    "PositionedTransformer": "vectors",
}

check_python()

# Importing fairseq logs that tensorboardX, which it needs for speech only, is missing.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)


def _register() -> None:
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    check_fairseq()
    from fairseq_floater.checkpoints.reading import allow_fairseq_checkpoints
    from fairseq_floater.transformer import (  # noqa: F401  registers them
        bert,
        language_model,
        question_answering,
        roberta,
        told_length,
        translation,
        windows,
    )

    # One of fairseq's models has made the root logger print DEBUG messages.
    root.setLevel(level)
    root.handlers[:] = handlers
    allow_fairseq_checkpoints()
    if os.environ.get("FLOATER_SAVE_ON_SIGTERM") == "1":
        from fairseq_floater.checkpoints import preemption

        preemption.install()
    if _YOUR_USER_DIR:
        if not Path(_YOUR_USER_DIR).is_dir():
            raise NotADirectoryError(
                f"`FLOATER_USER_DIR` must name a folder, but is {_YOUR_USER_DIR!r} instead."
            )
        if Path(_YOUR_USER_DIR).resolve().name in sys.stdlib_module_names:
            raise ImportError(
                f"`FLOATER_USER_DIR` must not be named like a module of Python, but is {_YOUR_USER_DIR!r}."
            )
        from fairseq.utils import import_user_module

        import_user_module(Namespace(user_dir=_YOUR_USER_DIR))


def _is_own_command() -> bool:
    """Return whether this is `floater ...` or `python -m fairseq_floater...`."""
    if sys.argv[:1] == ["-m"]:  # while Python looks for the module
        module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")  # also of `python -um MODULE`
        return module.partition(".")[0] == __name__
    return Path(*sys.argv[:1]).name == "floater"


def __getattr__(name: str) -> Any:
    if name in _MODELS:
        _register()
        return getattr(importlib.import_module(f"{__name__}.transformer.{_MODELS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Registering imports fairseq, which takes seconds. Other programs may use fairseq right after this import, so
# it cannot wait. The command `floater` imports fairseq itself if a verb needs it.
if _YOUR_USER_DIR or "fairseq" in sys.modules or not _is_own_command():
    _register()
