"""Small models and sentences for tests, built the way fairseq builds them."""

from argparse import Namespace

import on_device
import pytest
import torch
import torch.nn.functional as F
from encoder_cases import ALL_BLOCKS, CASES, MECHANISMS, MOST, options_of
from fairseq import models
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.sequence_generator import SequenceGenerator

import fairseq_floater  # noqa: F401  registers the architectures
from fairseq_floater.position_encoders.base import PositionEncoder
from fairseq_floater.position_encoders.kerple import KerplePositions
from fairseq_floater.position_encoders.relative_flow import DistanceFlow
from fairseq_floater.position_encoders.signal import PositionSignal
from fairseq_floater.position_encoders.token_rnn import TokenRecurrence

TINY = "floater_transformer_tiny"

PAD, EOS = 1, 2  # where fairseq's Dictionary puts them
FIRST_WORD, VOCABULARY = 4, 40


def parametrised(cases):
    """A mark that runs a test for each (encoder, blocks, target) of ``cases``."""
    ids = ["-".join(case) for case in cases]
    return pytest.mark.parametrize(("encoder", "blocks", "target"), cases, ids=ids)


every_case = parametrised(CASES)
most_cases = parametrised(MOST)
# For tests in which the case "all" covers the case "input" too.
every_encoder = parametrised(ALL_BLOCKS)
every_mechanism = parametrised(MECHANISMS)
every_stage = parametrised([case for case in CASES if case[2] == "stage"])
every_target = pytest.mark.parametrize("target", ["qkv", "hidden"])
TOLERANCE = 2e-5  # of log-probabilities that two ways of computing must agree on


def dictionary():
    words = Dictionary()
    for i in range(VOCABULARY - len(words)):
        words.add_symbol(f"w{i}")
    return words


def task():
    words = dictionary()
    return Namespace(source_dictionary=words, target_dictionary=words)


def build(encoder=None, blocks="all", target="hidden", arch=TINY, seed=0, **args):
    """Build a model through fairseq's registries; without ``encoder``, ``arch`` decides its positions."""
    if encoder is not None:
        args = options_of(target) | args | {"position_encoder": encoder, "position_blocks": blocks}
    torch.manual_seed(seed)
    return models.build_model(Namespace(arch=arch, **args), task()).to(on_device.DEVICE)


def plain(seed=0, **args):
    """fairseq's own Transformer of the same shape."""
    return build(arch="transformer_tiny", seed=seed, **args)


def visible(encoder, blocks="all", target="hidden", **args):
    """Return a model in eval mode whose positions are large enough to show in its output."""
    return randomise_positions(build(encoder, blocks, target, **args)).eval()


def stacks(model):
    """Return the encoder and decoder of a translation model, or the only stack of another model."""
    if not hasattr(model, "encoder"):
        return (model.decoder,)
    if hasattr(model, "decoder"):
        return model.encoder, model.decoder
    return (model.encoder.sentence_encoder,)


def signals(model):
    """Every position signal of a model: [(stack, attribute, signal)]."""
    return [
        (stack, name, module)
        for stack in stacks(model)
        for name, module in stack.named_children()
        if isinstance(module, PositionEncoder)
    ]


def parts(stack, name):
    """Return the modules that the blocks of ``stack`` own for the signal ``stack.<name>``."""
    return [getattr(b, name) for b in stack.layers.children() if getattr(b, name) is not None]


def tables(model, rows=12, dtype=torch.float32):
    """The table of every signal that has one, as the stacks ask for it."""
    with torch.no_grad():
        return [
            s(rows, parts(k, n), dtype) for k, n, s in signals(model) if s.tabulated and parts(k, n)
        ]


def position_modules(model):
    """Return all signals and the modules that the blocks own for them."""
    found = []
    for stack, name, signal in signals(model):
        found += [signal, *parts(stack, name)]
    return found


def position_parameters(model):
    return [p for module in position_modules(model) for p in module.parameters()]


def randomise_positions(model, seed=1):
    """Set position parameters to random values about as large as the token embeddings.

    A flow's matrices stay small, so that a flow of 700 tokens stays finite.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in position_modules(model):
            for name, parameter in module.named_parameters():
                of_stack = isinstance(module, PositionEncoder)
                std = 1.0 if of_stack and parameter.dim() == 1 else 0.5
                flows = (PositionSignal, DistanceFlow)
                of_flow = isinstance(module, flows) or name.startswith("dynamics.")
                if of_flow and parameter.dim() > 1:
                    std = 0.03
                elif isinstance(module, TokenRecurrence):
                    std = 0.125  # with more, twelve steps of such a recurrence amplify rounding
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
                if isinstance(module, KerplePositions):
                    parameter.abs_()  # a kernel's parameters are positive; outside, some gradients are 0
    return model


def sentence(length, seed=0):
    """Random words and the end symbol: [1, length]."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    words = torch.randint(FIRST_WORD, VOCABULARY, (1, length - 1), generator=generator)
    return torch.cat([words, torch.tensor([[EOS]])], dim=1)


def shifted(target):
    """What the decoder sees: the end symbol, then every word but the last: [B, T]."""
    return torch.cat([target[:, -1:], target[:, :-1]], dim=1)


def padded(sentences, left):
    """Sentences [1, T] as a batch [B, T], padded on one side."""
    width = max(s.size(1) for s in sentences)
    batch = torch.full((len(sentences), width), PAD)
    for row, s in zip(batch, sentences):
        row[width - s.size(1) :] = s[0]
        if not left:
            row.copy_(row.roll(s.size(1) - width))
    return batch


def source_batch(left=True, lengths=(7, 11, 4)):
    return padded([sentence(n, seed=i) for i, n in enumerate(lengths)], left)


def target_batch(left=False, lengths=(9, 5, 12)):
    return padded([shifted(sentence(n, seed=9 + i)) for i, n in enumerate(lengths)], left)


def normalised(model, output):
    return model.get_normalized_probs(output, log_probs=True, sample=None)


def raw_log_probs(model, source, target_in):
    lengths = source.ne(PAD).sum(1)
    return normalised(model, model(source, lengths, target_in))


@torch.no_grad()
def log_probs(model, source, target_in):
    """One teacher-forced pass: [B, T, V]."""
    return raw_log_probs(model, source, target_in)


@torch.no_grad()
def stepwise_log_probs(model, source, target_in, orders=None, beam=1):
    """Return the log-probabilities of decoding step by step with the cache.

    Before step t the rows are reordered by ``orders[t]``. Each source gets ``beam`` copies, as in a search.
    """
    encoder_out = model.encoder(source, src_lengths=source.ne(PAD).sum(1))
    if beam > 1:
        copies = torch.arange(len(source)).repeat_interleave(beam)
        encoder_out = model.encoder.reorder_encoder_out(encoder_out, copies)
    state, steps = {}, []
    for t in range(target_in.size(1)):
        if orders and t in orders:
            order = torch.tensor(orders[t])
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            target_in = target_in[order]
            steps = [s[order] for s in steps]
        output = model.decoder(
            target_in[:, : t + 1], encoder_out=encoder_out, incremental_state=state
        )
        steps.append(normalised(model, output)[:, -1:])
    return torch.cat(steps, dim=1)


def gold_of(tokens):
    """Return made-up words to predict after ``tokens``, of the same shape."""
    return (tokens * 7 + 3) % (VOCABULARY - FIRST_WORD) + FIRST_WORD


def gold_loss(scores, tokens):
    """Return a loss of log-probabilities [B, T, V] in which every token but padding weighs the same."""
    return -scores.gather(2, gold_of(tokens).unsqueeze(2))[tokens.ne(PAD)].mean()


def loss_of(model, source=None, target_in=None):
    """Return the :func:`gold_loss` over a padded batch."""
    source = source_batch() if source is None else source
    target_in = target_batch() if target_in is None else target_in
    output = model(source, source.ne(PAD).sum(1), target_in)
    if model.decoder.adaptive_softmax is not None:  # as fairseq's adaptive_loss criterion
        real, gold = target_in.ne(PAD), gold_of(target_in)
        scores, golds = model.decoder.adaptive_softmax(output[0][real], gold[real])
        pairs = [(s, g) for s, g in zip(scores, golds) if s is not None]
        return sum(F.cross_entropy(s, g, reduction="sum") for s, g in pairs) / real.sum()
    return gold_loss(normalised(model, output), target_in)


def gradients(model, seed=0):
    """Return the loss, and {name: gradient}, of one training step under ``seed``."""
    model.zero_grad()
    torch.manual_seed(seed)
    loss = loss_of(model.train())
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters()}


def fast(model):
    """Prepare a model as fairseq-generate does without --print-alignment."""
    model.make_generation_fast_(need_attn=None)
    return model


def generated(models, source, longest=25):
    """Return the four best hypotheses of every sentence in one list."""
    generator = SequenceGenerator(models, dictionary(), beam_size=4, max_len_b=longest)
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1)}}
    with torch.no_grad():
        return [hypothesis for best in generator.generate(models, sample) for hypothesis in best]


def difference(a, b):
    """Largest absolute difference; NaN anywhere counts as infinite."""
    assert a.shape == b.shape, (a.shape, b.shape)
    largest = float((a - b).detach().abs().max())
    return largest if largest == largest else float("inf")


def save_donor(path, *, arch="transformer_tiny", data=None, seed=3, **options):
    """Write a checkpoint of an untrained model as fairseq's trainer does; return its path."""
    model = build(arch=arch, seed=seed, **options)
    lengths = {"max_source_positions": 1024, "max_target_positions": 1024}
    args = Namespace(arch=arch, **{**lengths, **options})
    ARCH_CONFIG_REGISTRY[arch](args)
    task = {"source_lang": "en", "target_lang": "de", "data": data}
    return save_state(
        path, model, args, task, checkpoint={"maximize_best_checkpoint_metric": False}
    )


def save_state(path, model, args, task, **cfg):
    """Write a checkpoint as fairseq's trainer does; ``cfg``: further sections of options."""
    updates = {"num_updates": 7, "criterion_name": "x", "optimizer_name": "y"}
    state = {
        "args": None,
        "cfg": {"model": args, "task": task, **cfg},
        "model": model.state_dict(),
        "criterion": None,
        "optimizer_history": [{**updates, "lr_scheduler_state": {}}],
        "task_state": {},
        "extra_state": {"train_iterator": {"epoch": 4}, "val_loss": 2.0},
        "last_optimizer_state": {"state": {}},
    }
    torch.save(state, path)
    return path


def save_model(path, encoder="floater", blocks="all", target=None, change=None, **options):
    """Write a checkpoint of a model with positions; ``change`` edits its parameters in place."""
    options |= {"position_encoder": encoder, "position_blocks": blocks, "position_target": target}
    save_donor(path, arch=TINY, **options)
    state = torch.load(path, weights_only=True)
    if change is not None:
        change(state["model"])
    torch.save(state, path)
    return path


def recorded(model, monkeypatch):
    """Return a list that collects the result of every call of a signal's `rows`."""
    calls = []
    for _, _, signal in signals(model):

        def compute(*args, _compute=signal.rows):
            calls.append(_compute(*args))
            return calls[-1]

        monkeypatch.setattr(signal, "rows", compute)
    return calls
