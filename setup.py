"""fairseq_floater: position encoders for fairseq's Transformer, FLOATER first among them."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (HERE / "fairseq_floater" / "version.py").read_text(), re.MULTILINE
).group(1)

setup(
    name="fairseq_floater",
    version=VERSION,
    description="FLOATER and other position encoders as a fairseq plugin, with the paper's protocol",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11,<3.15",
    packages=find_packages(include=["fairseq_floater", "fairseq_floater.*"]),
    package_data={"fairseq_floater.results.page": ["page.html", "page.css", "page.js"]},
    install_requires=[
        # fairseq is left out on purpose. It must be built without isolation, against the installed
        # torch, as scripts/setup.sh does; as a requirement, it would fetch another torch.
        # `floater info` reports if it is missing.
        "torch>=2.6",
        "torchdiffeq>=0.2.4",
        "sacrebleu>=2.3,<3",
        "sentencepiece>=0.2",
        "num2words>=0.5.13",
        "matplotlib>=3.7",
        "omegaconf>=2.0",
        "tqdm>=4.60",
        "psutil>=5.9",
    ],
    # requirements.py names the extra to install if one of its modules is missing.
    extras_require={
        "wmt14": ["sacremoses>=0.1", "subword-nmt>=0.3.8"],
        "roberta": ["tokenizers>=0.13.2", "safetensors>=0.4", "scikit-learn>=1.2", "scipy>=1.9.2"],
        "page": ["jinja2>=3.1", "pillow>=9.4"],
        "dev": ["pytest>=8", "pytest-xdist>=3", "hypothesis>=6", "ruff>=0.8", "mypy>=1.13"]
        + ["types-tqdm"],
        # Other implementations of encoders. Tests compare ours with them; without them, they are skipped.
        "oracles": ["transformers==5.23.0", "x-transformers==2.31.10"],
    },
    entry_points={"console_scripts": ["floater=fairseq_floater.cli:main"]},
)
