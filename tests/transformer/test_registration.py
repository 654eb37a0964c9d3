"""Importing the package registers its models; only the program `floater` delays it until needed."""

import sys

import pytest
from toy import run

FOUND = """
from fairseq.models import ARCH_MODEL_REGISTRY
print("floater_transformer_tiny" in ARCH_MODEL_REGISTRY)
"""
# The process has fairseq already, which the program `floater` would not have.
WAITED = """
fairseq = sys.modules.pop("fairseq")
import fairseq_floater
sys.modules["fairseq"] = fairseq
from fairseq.models import ARCH_MODEL_REGISTRY
assert "floater_transformer_tiny" not in ARCH_MODEL_REGISTRY
"""


@pytest.mark.parametrize(
    ("program", "imports"),
    [
        ("python", "import fairseq_floater"),
        ("floater", "import fairseq, fairseq_floater"),  # whatever the program is called
        ("floater", WAITED + "from fairseq_floater import FloaterTransformerModel"),
        ("floater", WAITED + "from fairseq_floater import FloaterRobertaModel"),
        ("floater", WAITED + "import fairseq_floater.transformer.translation"),
    ],
    ids=["python", "fairseq", "transformer", "roberta", "module"],
)
def test_the_architectures_are_registered_after(program, imports):
    code = f"import sys; sys.argv = [{program!r}]\n{imports}\n{FOUND}"
    assert run([sys.executable, "-c", code]).stdout == "True\n"
