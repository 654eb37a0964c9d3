"""Makes the checkpoints of tests/stored and their outputs: python tests/make_stored.py [CASE...] [--force]

Without a CASE, those that are missing. What is stored stands for what people have on their disks, so it
is remade (--force) only where a release may break checkpoints: CHANGELOG.md, rule one. A case of an
older release is made by its own code: PYTHONPATH=<its checkout> python tests/make_stored.py CASE.

Those that are there: commit 2c48503, the last one before `--floater-solver auto`, made all but the two of
`auto`, made after ecf4ed3, and the two RoBERTas, made by the first commit that could.

The donor is made by official fairseq 0.12.2, on Python 3.10 or older and without the plugin. The one that is
there: Python 3.9, and Debian's torch 1.7.1 with PYTORCH_JIT=0 and `torch.div` taught `rounding_mode`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import lzma
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from fairseq import checkpoint_utils

STORED = Path(__file__).resolve().parent / "stored"
OUTPUTS = STORED / "outputs.json"
WORDS = "abcdefghijkl"
PAD, EOS, FIRST_WORD = 1, 2, 4  # where fairseq's Dictionary puts them
DONOR = "donor"
DONOR_VERSION = "0.12.2"

# Large enough that the outputs show what the flow does.
FLOW = ("--position-encoder", "floater", "--floater-init-scale", "0.3")
# The default before `auto`, which checkpoints of that time record.
FIRST_DEFAULT = ("--floater-solver", "rk4_hermite", "--floater-step-size", "0.2")
CASES = {
    "floater-qkv": (*FLOW, "--position-target", "qkv", *FIRST_DEFAULT),
    "floater-hidden": (*FLOW, "--position-target", "hidden", *FIRST_DEFAULT),
    "floater-qkv-auto": (*FLOW, "--position-target", "qkv", "--floater-solver", "auto"),
    "floater-hidden-auto": (*FLOW, "--position-target", "hidden", "--floater-solver", "auto"),
    **{name: ("--position-encoder", name) for name in ("rnn", "learned")},
    # Stored under the name that the encoder had before: it must load.
    "rotation": ("--position-encoder", "rotation_flow"),
    **{name: ("--position-encoder", name) for name in ("sinusoidal", "none")},
    **{
        name: ("--position-encoder", name)
        for name in (
            *("rope", "t5", "alibi", "shaw", "nezha", "xl", "tener", "deberta", "tupe"),
            *("conv", "token-rnn", "complex"),
            *("xpos", "kerple", "sandwich", "fire", "cope", "forget"),
        )
    },
    "roberta-floater": (*FLOW, *FIRST_DEFAULT, "--floater-delta=0.01", "--floater-train=rest"),
    "roberta-t5": ("--position-encoder", "t5"),
    DONOR: (),
}
LANGUAGES = ("--source-lang", "en", "--target-lang", "de")
ROBERTA_SHAPE = (
    *("--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "8", "--encoder-layers", "2"),
    *("--encoder-attention-heads", "2", "--max-positions", "32"),
)
SHAPE = (
    *("--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "8", "--encoder-layers", "2"),
    *("--decoder-embed-dim", "8", "--decoder-ffn-embed-dim", "8", "--decoder-layers", "1"),
    *("--max-source-positions", "32", "--max-target-positions", "32", "--share-all-embeddings"),
)
TRAINING = (
    *("--optimizer", "adam", "--lr", "0.02", "--max-update", "30", "--max-tokens", "400", "--cpu"),
    *("--no-epoch-checkpoints", "--disable-validation", "--no-save-optimizer-state"),
    *("--log-format", "simple", "--seed", "1"),
)
TRANSLATION = (
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
    *(*LANGUAGES, *SHAPE),
)
MASKED = (
    *("--task", "masked_lm", "--criterion", "masked_lm", "--tokens-per-sample", "32"),
    *("--sample-break-mode", "complete", *ROBERTA_SHAPE),
)


def sentence(length: int, number: int) -> list[int]:
    """Return fixed word ids and the end symbol; random numbers would change with torch's version."""
    words = [FIRST_WORD + (5 * i * i + 3 * i + 7 * number) % len(WORDS) for i in range(length - 1)]
    return [*words, EOS]


def batch(lengths: tuple[int, ...], first: int, left: bool) -> torch.Tensor:
    """Sentences of these lengths, padded as fairseq pads them."""
    rows = []
    for number, length in enumerate(lengths):
        padding = [PAD] * (max(lengths) - length)
        words = sentence(length, first + number)
        rows.append(padding + words if left else words + padding)
    return torch.tensor(rows)


def packed(case: str) -> Path:
    """Return the path of a case's checkpoint, which xz has packed."""
    return STORED / f"{case}.pt.xz"


def unpacked(case: str, folder: Path) -> Path:
    path = folder / f"{case}.pt"
    path.write_bytes(lzma.decompress(packed(case).read_bytes()))
    return path


def load(path: Path):
    """Load model and task as fairseq-generate does."""
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(path)], arg_overrides={"data": str(STORED)}
    )
    return models[0].eval(), task


@torch.no_grad()
def outputs(model, task) -> dict:
    """Return the log-probabilities of two sentences, and the two best hypotheses of a beam search.

    A RoBERTa has no hypotheses.
    """
    source, target = batch((5, 20), 0, left=True), batch((4, 20), 5, left=False)
    if not hasattr(model, "decoder"):
        return {"log_probs": rounded(model(target)[0].log_softmax(-1), target), "hypotheses": []}
    lengths = source.ne(PAD).sum(1)
    previous = torch.cat([torch.full((2, 1), EOS), target[:, :-1]], dim=1)
    scores = model.get_normalized_probs(model(source, lengths, previous), True, None)
    options = argparse.Namespace(beam=3, nbest=2, max_len_a=0, max_len_b=12)
    generator = task.build_generator([model], options)
    sample = {"net_input": {"src_tokens": source, "src_lengths": lengths}}
    found = [h for best in task.inference_step(generator, [model], sample) for h in best]
    return {
        "log_probs": rounded(scores, target),
        "hypotheses": [{"tokens": h["tokens"].tolist(), "score": float(h["score"])} for h in found],
    }


def rounded(scores: torch.Tensor, words: torch.Tensor) -> list[list[float]]:
    """Return the scores at words, not padding, rounded to seven digits."""
    return [[round(x, 7) for x in row] for row in scores[words.ne(PAD)].tolist()]


def run(folder: Path, tool: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", f"fairseq_cli.{tool}", *words], cwd=folder, check=True)


def write_text(folder: Path) -> None:
    """Write sentences of 2 to 8 words and, as targets, their reversals: only their order can be learned."""
    lines = [[WORDS[w - FIRST_WORD] for w in sentence(3 + i % 7, i)[:-1]] for i in range(60)]
    for language, step in (("en", 1), ("de", -1)):
        text = "".join(" ".join(line[::step]) + "\n" for line in lines)
        (folder / f"train.{language}").write_text(text)


def binarise(folder: Path) -> None:
    write_text(folder)
    # Validation is switched off, but official fairseq wants to see its data.
    text = ("--trainpref", "train", "--validpref", "train")
    run(folder, "preprocess", *LANGUAGES, *text, "--joined-dictionary")
    STORED.mkdir(exist_ok=True)
    for language in ("en", "de"):
        shutil.copy(folder / "data-bin" / f"dict.{language}.txt", STORED)
    # The same words for RoBERTas.
    words = ("--only-source", "--srcdict", "data-bin/dict.en.txt", "--destdir", "masked")
    run(folder, "preprocess", "--trainpref", "train.en", "--validpref", "train.en", *words)
    shutil.copy(folder / "masked" / "dict.txt", STORED)


def make(case: str, folder: Path) -> dict:
    """Train a case for some updates, store its checkpoint, and return its outputs."""
    arch, options, data, own = "transformer_tiny", list[str](), "data-bin", TRANSLATION
    if case.startswith("roberta"):
        arch, data, own = "roberta", "masked", MASKED
    if case != DONOR:
        arch = f"floater_{arch}"
        # The checkpoint records this name, so it is relative.
        package = Path(importlib.util.find_spec("fairseq_floater").origin).parent
        if not (folder / package.name).exists():
            (folder / package.name).symlink_to(package)
        options = ["--user-dir", package.name]
    options += ["--arch", arch, *CASES[case], *own, *TRAINING, "--save-dir", case]
    run(folder, "train", data, *options)
    checkpoint = folder / case / "checkpoint_last.pt"
    model, task = load(checkpoint)
    found = outputs(model, task)
    exact = outputs(model.double(), task)
    if [h["tokens"] for h in found["hypotheses"]] != [h["tokens"] for h in exact["hypotheses"]]:
        raise SystemExit(f"{case}: rounding decides between hypotheses; train it otherwise.")
    packed(case).write_bytes(lzma.compress(checkpoint.read_bytes()))
    return {"made_with": versions(), **found}


def versions() -> dict[str, str]:
    """Return the versions of Python, torch and fairseq."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in ("fairseq", "fairseq-fixed"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--force", action="store_true", help="overwrite what is stored")
    args = parser.parse_args(words)
    unknown = [case for case in args.cases if case not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; known: {', '.join(CASES)}")
    official = versions().get("fairseq") == DONOR_VERSION
    there = {case for case in CASES if packed(case).exists()}
    here = [case for case in CASES if (case == DONOR) == official]
    wanted = args.cases or [case for case in here if args.force or case not in there]
    kept = [case for case in wanted if case in there]
    if kept and not args.force:
        print(f"{', '.join(kept)}: stored already; --force overwrites.", file=sys.stderr)
        return 1
    wrong = [case for case in wanted if case not in here]
    if wrong:
        print(f"{', '.join(wrong)}: not with {versions()}; see --help.", file=sys.stderr)
        return 1
    if wanted:
        store(wanted)
    return 0


def store(cases: list[str]) -> None:
    """Make these cases one after the other; store each before the next begins."""
    if DONOR not in cases:
        import fairseq_floater  # noqa: F401  registers the model for `load`
    with tempfile.TemporaryDirectory() as name:
        binarise(Path(name))
        for case in cases:
            stored = json.loads(OUTPUTS.read_text()) if OUTPUTS.exists() else {}
            stored[case] = make(case, Path(name))
            text = json.dumps(stored, sort_keys=True).replace("]], ", "]],\n")
            OUTPUTS.write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
