"""Check the documents against the code: files, links, commands and the table of encoders."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import toy as toys
import warm

from fairseq_floater.experiments.info import collect
from fairseq_floater.position_encoders import POSITION_ENCODERS, all_options

pytestmark = pytest.mark.skipif(
    "FLOATER_USER_DIR" in os.environ, reason="the documents have no encoders of your own"
)
ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [*(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")), *PAGES]
ROOMS = sorted(path.parent.name for path in toys.PACKAGE.glob("*/__init__.py"))
# A path from the repository's root, or from the package's if it begins with a subpackage.
PATH = re.compile(
    rf"(?<![\w/.-])((?:scripts|configs|docs|fairseq_floater|tests|benchmarks|{'|'.join(ROOMS)})/[\w./-]+"
    r"\.(?:sh|py|yaml|md|png))\b"
)


def faults(find, names=DOCUMENTS):
    """Return {name: all that ``find`` finds there}, without names for which it finds nothing."""
    return {str(name): found for name in names if (found := list(find(name)))}


def test_every_file_named_is_there():
    def missing(document):
        # Python blocks are the reader's own: they name files to be written.
        text = re.sub(r"```python\n.*?```", "", document.read_text(), flags=re.DOTALL)
        bases = (ROOT, toys.PACKAGE)
        return (p for p in PATH.findall(text) if not any((base / p).exists() for base in bases))

    assert faults(missing) == {}


def anchors(document):
    """The anchors that GitHub makes of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere():
    def broken(document):
        links = re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", document.read_text())
        for target, anchor in links:
            path = document.parent / (target or document.name)
            if not path.exists() or (anchor and anchor not in anchors(path)):
                yield f"{target}#{anchor}"

    assert faults(broken) == {}


def test_every_page_is_linked_from_the_readme():
    text = (ROOT / "README.md").read_text()
    pages = [p for p in DOCUMENTS[1:] if p.parent.name != "notes"]
    pages.append(ROOT / "CITATION.cff")
    assert [p.name for p in pages if f"{p.relative_to(ROOT)})" not in text] == []


def test_documents_stay_short():
    words = {page: len(page.read_text().split()) for page in DOCUMENTS}
    assert words[ROOT / "README.md"] <= 1_300
    assert sum(words[page] for page in PAGES) <= 24_400


def test_prose_is_wrapped():
    def long(document):
        prose = re.sub(r"```.*?```|<!--.*-->", "", document.read_text(), flags=re.DOTALL)
        lines = (line for line in prose.splitlines() if not line.startswith(("|", "![")))
        return (line for line in lines if len(line) > 120)

    assert faults(long) == {}


def test_the_table_of_encoders_is_the_codes():
    text = (ROOT / "docs" / "encoders.md").read_text()
    found = re.search(r"<!-- encoders.*?-->\n(.*?)\n<!-- /encoders -->", text, re.DOTALL)
    assert found is not None
    assert found[1].strip() == collect().encoder_table().strip()


def test_the_page_of_encoders_has_each_with_its_options():
    text = (ROOT / "docs" / "encoders.md").read_text()

    def missing(name):
        section = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
        options = [option.name for option in POSITION_ENCODERS[name].options]
        return [o for o in options if f"`{o}`" not in section[1]] if section else ["the section"]

    assert faults(missing, POSITION_ENCODERS) == {}


def test_the_page_of_options_has_all_of_them():
    text = (ROOT / "docs" / "options.md").read_text()
    assert [o.name for o in all_options() if not re.search(rf"`{o.name}[`= ]", text)] == []


def test_the_examples_of_new_encoders_keep_the_contract(tmp_path):
    """Add each example to a copy of the package as the page says: one file and one line."""
    text = (ROOT / "docs" / "add-an-encoder.md").read_text()
    for name in ("fairseq_floater", "tests", "configs"):
        ignored = shutil.ignore_patterns("__pycache__", "stored")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    folder = tmp_path / "fairseq_floater" / "position_encoders"
    files = re.findall(r"```python\n# position_encoders/(\w+)\.py\n(.*?)```", text, re.DOTALL)
    for name, code in files:
        (folder / f"{name}.py").write_text(code)
    registry = (folder / "registry.py").read_text()
    lines = re.findall(r'^ {4}"\w+": Entry\(.*\),\n', text, re.MULTILINE)
    first = re.search(r'^ {4}"floater": Entry', registry, re.MULTILINE).start()
    (folder / "registry.py").write_text(registry[:first] + "".join(lines) + registry[first:])
    names = [name for name, _ in files]
    assert len(names) == len(lines) == 2
    words = ["-q", "-p", "no:cacheprovider", "tests/contract", "-k", " or ".join(names)]
    environment = toys.environment(PYTHONPATH=str(tmp_path))
    found = toys.run([sys.executable, "-m", "pytest", *words], cwd=tmp_path, env=environment)
    assert int(re.search(r"(\d+) passed", found.stdout)[1]) > 150


def test_fairseqs_commands_on_a_checkpoint_run_as_typed(tmp_path_factory, tmp_path):
    """Run the page's commands on a toy experiment in place of the page's data and training."""
    toy = toys.shared(tmp_path_factory)
    (tmp_path / "data").symlink_to(toy.prepared)
    (tmp_path / "checkpoints").symlink_to(toy.donor.parent)
    text = (ROOT / "docs" / "fairseq-commands.md").read_text()
    block = re.search(r"```bash\n(.*?)```", text, re.DOTALL)[1]
    commands = block[block.index("fairseq-generate") :]
    for tool in ("generate", "validate", "interactive"):
        command = tmp_path / f"fairseq-{tool}"
        command.write_text(f'#!/bin/sh\nexec {warm.python()} -m fairseq_cli.{tool} "$@"\n')
        command.chmod(0o755)
    path = (str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"])
    environment = toys.environment(PATH=os.pathsep.join(path))
    script = ["bash", "-euo", "pipefail", "-c", commands]
    output = toys.run(script, cwd=tmp_path, env=environment).stdout
    for result in (r"^BLEU +\d", r"valid on 'valid' subset \| loss", r"^D-0\t"):
        assert re.search(result, output, re.MULTILINE), result
