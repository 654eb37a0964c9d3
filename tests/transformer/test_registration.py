"""Importing the package registers its models; only the program `floater` delays it until needed."""

import sys

import pytest
from toy import environment, fairseq, floater, run

import fairseq_floater

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


@pytest.mark.parametrize("program", ["your_program", "floater"])
def test_the_programs_logging_stays_as_it_is(program):
    code = f"import sys; sys.argv = [{program!r}]; import logging, fairseq_floater as f"
    code += "; f.PositionedTransformer; r = logging.getLogger(); print(r.level, r.handlers)"
    assert run([sys.executable, "-c", code], new=True).stdout == "30 []\n"


OWN_USER_DIR = """
from fairseq.models import register_model_architecture
from fairseq.models.transformer import tiny_architecture
from fairseq_floater.position_encoders.alibi import AlibiPositions
from fairseq_floater.position_encoders.registry import register_position_encoder

@register_position_encoder
class MyPositions(AlibiPositions):
    name = title = "mine"

register_model_architecture("floater_transformer", "floater_transformer_mine")(tiny_architecture)
"""


def test_a_user_dir_of_your_own_adds_encoders_and_architectures(toy, tmp_path):
    folder = tmp_path / "my_code"
    folder.mkdir()
    (folder / "__init__.py").write_text(OWN_USER_DIR)
    env = environment(FLOATER_USER_DIR=folder)
    names = ("--arch", "floater_transformer_mine", "--position-encoder", "mine")
    fairseq("train", *toy.training(tmp_path, *names, "--max-update", 1), env=env)
    plot = ("plot", "positions", tmp_path / "checkpoint_last.pt", tmp_path / "positions.png")
    # A new process imports fairseq, and with it the user directory, only when it reads the model.
    assert "mine, inside attention" in floater(*plot, env=env, new=True).stdout
    refusal = "its architecture is 'floater_transformer_mine' (unknown here; FLOATER_USER_DIR may"
    assert refusal in floater(*plot, code=1).stderr


def test_a_user_dir_of_your_own_must_exist_under_a_name_of_its_own(tmp_path, monkeypatch):
    env = environment(FLOATER_USER_DIR=tmp_path / "my_code")
    refusal = run([sys.executable, "-c", "import fairseq_floater"], env=env, code=1).stderr
    assert "`FLOATER_USER_DIR` must name a folder, but is" in refusal
    # In this process, and with the name of a module that it has.
    (tmp_path / "code").mkdir()
    monkeypatch.setattr(fairseq_floater, "_YOUR_USER_DIR", str(tmp_path / "code"))
    with pytest.raises(ImportError, match="must not be named like a module of Python"):
        fairseq_floater._register()
