"""Importing the package registers with fairseq; `floater` alone waits until fairseq is needed."""

import sys

import pytest
from toy import run

FOUND = """
from fairseq.models import ARCH_MODEL_REGISTRY
print("floater_transformer_tiny" in ARCH_MODEL_REGISTRY)
"""


@pytest.mark.parametrize(
    ("program", "imports"),
    [
        ("python", "import fairseq_floater"),
        ("python", "import fairseq, fairseq_floater"),
        ("floater", "import fairseq, fairseq_floater"),  # whatever the program is called
        ("floater", "from fairseq_floater import FloaterTransformerModel"),
        ("floater", "from fairseq_floater import FloaterRobertaModel"),
        ("floater", "import fairseq_floater.transformer.translation"),
    ],
)
def test_the_architectures_are_registered_after(program, imports):
    code = f"import sys; sys.argv = [{program!r}]\n{imports}\n{FOUND}"
    assert run([sys.executable, "-c", code]).stdout == "True\n"


def test_our_own_command_starts_without_fairseq():
    code = "print({'torch', 'fairseq'} & {*sys.modules})"
    console = f"import sys; sys.argv = ['/bin/floater']\nimport fairseq_floater.cli\n{code}"
    assert run([sys.executable, "-c", console], new=True).stdout == "set()\n"
    command = [sys.executable, "-X", "importtime", "-m", "fairseq_floater", "user-dir"]
    imported = {line.split("|")[-1].strip() for line in run(command).stderr.splitlines()}
    assert "fairseq_floater.cli" in imported
    assert not {"torch", "fairseq"} & imported
