"""fairseq_floater: what `--user-dir` loads.

Importing it registers the ``floater_transformer`` architectures with fairseq and allow-lists what a
safe load of fairseq's checkpoints needs. ``floater user-dir`` prints this folder.
With ``FLOATER_SAVE_ON_SIGTERM=1`` in the environment a training saves when it is told to stop.
"""

import logging
import os

from fairseq_floater.version import __version__ as __version__

# Importing fairseq logs that tensorboardX, which it needs for speech only, is missing.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)

from fairseq_floater.checkpoints import allow_fairseq_checkpoints  # noqa: E402

allow_fairseq_checkpoints()

from fairseq_floater import architectures as architectures  # noqa: E402
from fairseq_floater.transformer import FloaterTransformerModel as FloaterTransformerModel  # noqa: E402

if os.environ.get("FLOATER_SAVE_ON_SIGTERM") == "1":
    from fairseq_floater import preemption

    preemption.install()
