"""fairseq-train reaches the same losses with the fast engine as with torchdiffeq's."""

import pytest
import toy as toys

UPDATES = 200
SMOOTHED_OVER = 10


def curve(log):
    """Training losses, averaged over ten updates."""
    found = [float(loss) for loss in toys.update_losses(log).values()]
    assert len(found) == UPDATES
    starts = range(0, UPDATES, SMOOTHED_OVER)
    return [sum(found[i : i + SMOOTHED_OVER]) / SMOOTHED_OVER for i in starts]


def distance(first, second):
    return sum(abs(a - b) for a, b in zip(first, second, strict=True)) / len(first)


FORMS = {
    "qkv": (),
    # Without other positions: the model learns word order through the flow alone.
    "hidden": ("--position-target", "hidden", "--no-token-positional-embeddings"),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_the_fast_engine_trains_like_torchdiffeqs(toy, tmp_path, form):
    def trained(name, *options):
        words = ["--arch", toys.ARCH, "--max-update", UPDATES, *FORMS[form], *options]
        words += ["--no-save", "--disable-validation"]
        return curve(toy.train(tmp_path / name, *words, timeout=1800).stdout)

    fast = trained("fast")
    reference = trained("reference", "--floater-solver", "rk4", "--floater-step-size", 0.02)
    other_seed = trained("seed", "--seed", 2)
    print(f"{form}: engines differ by {distance(fast, reference):.5f}", end=", ")
    print(f"seeds by {distance(fast, other_seed):.5f}; from {fast[0]:.3f} to {fast[-1]:.3f}")
    assert fast[-1] < fast[0] - 1
    assert distance(fast, reference) < 0.5 * distance(fast, other_seed)
