import copy
import gc

import pytest
import warm


@pytest.fixture(scope="module", autouse=True)
def _little_garbage():
    """Exclude what is there by now, slow later imports too, from the collection before a turn."""
    import torch._dynamo  # by the first optimiser
    import torch.profiler  # noqa: F401

    gc.freeze()


_COMPOSED = {}


@pytest.fixture(scope="module", autouse=True)
def _composed_once():
    """Let Hydra compose equal overrides only once: options of a model are not among them."""
    from fairseq.dataclass import utils  # brings fairseq

    def compose(name, overrides, original=utils.compose, **how):
        key = (name, *overrides)
        if key not in _COMPOSED:
            _COMPOSED[key] = original(name, overrides=overrides, **how)
        return copy.deepcopy(_COMPOSED[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "compose", compose)
        warm.quicken_hydra(patch.setattr)
        yield
