"""GLUE's official files: each task as fairseq's sentence_prediction reads it, each fault a sentence."""

import gzip
import shutil

import pytest
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from omegaconf import OmegaConf

from fairseq_floater.data.parallel_text import TextDataError
from fairseq_floater.data.understanding import glue
from fairseq_floater.data.understanding.binarise import Vocabulary
from fairseq_floater.data.understanding.glue_tasks import GLUE_TASKS, glue_task
from fairseq_floater.errors import UsageError

A, B = 'the "third', "they're nine  "
PAIR = f"{A}\t{B}"
MNLI_HEAD = "index\tpromptID\tpairID\tgenre\ts1bp\ts2bp\ts1p\ts2p\tsentence1\tsentence2\tlabel1"
ENTAILMENT = ("not_entailment", "entailment"), ("entailment", "not_entailment")
# {task: (header, one line with the label for {}, the labels of two training lines and two of valid)}
FORMS = {
    "CoLA": ("", f"gj04\t{{}}\t*\t{A}", "10", "01"),
    "SST-2": ("sentence\tlabel", f"{A}\t{{}}", "01", "11"),
    "MRPC": ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", f"{{}}\t1\t2\t{PAIR}", "10", "01"),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        f"7\t1\t2\t{PAIR}\t{{}}",
        "10",
        "01",
    ),
    "STS-B": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        f"#\tnews\tf\t2012\t1\tnone\tnone\t{PAIR}\t{{}}",
        ("5.000", "0.25"),
        ("1.0", "3"),
    ),
    "MNLI": (
        f"{MNLI_HEAD}\tgold_label",
        f"#\t1\t1\tf\tp\tp\tp\tp\t{PAIR}\tneutral\t{{}}",
        ("entailment", "neutral"),
        ("contradiction", "neutral"),
    ),
    "QNLI": ("index\tquestion\tsentence\tlabel", f"#\t{PAIR}\t{{}}", *ENTAILMENT),
    "RTE": ("index\tsentence1\tsentence2\tlabel", f"#\t{PAIR}\t{{}}", *ENTAILMENT),
}
NAMES = sorted(task.name for task in GLUE_TASKS.values())


def lines_of(name, labels):
    """The text of a file; `#` in a line stands for its index, which counts from 5."""
    head, line, *_ = FORMS[name]
    rows = [line.format(label).replace("#\t", f"{k}\t", 1) for k, label in enumerate(labels, 5)]
    return "".join(f"{row}\r\n" for row in ([head] if head else []) + rows)


def write_raw(folder, name):
    """Write the official files of a task, with a byte-order mark, bare quotes and Windows' line ends."""
    task, (*_, train, valid) = glue_task(name), FORMS[name]
    (folder / name).mkdir(parents=True)
    for split, file in task.files.items():
        text = lines_of(name, train if split == "train" else valid)
        (folder / name / file).write_text(text, encoding="utf-8-sig", newline="")


def loaded(out, split, task):
    """The split as fairseq has it, in order, and the task."""
    config = {"data": str(out), "num_classes": len(task.labels) or 1, "init_token": 0, "seed": 1}
    config |= {"separator_token": 2, "regression_target": not task.labels, "max_positions": 512}
    config |= {"shorten_method": "none", "shorten_data_split_list": "", "no_shuffle": True}
    config |= {"d2v2_multi": False, "add_prev_output_tokens": False}
    fairseq_task = SentencePredictionTask.setup_task(OmegaConf.create(config))
    data = fairseq_task.load_dataset(split)
    return [data[k] for k in range(len(data))], fairseq_task


@pytest.mark.parametrize("name", NAMES)
def test_fairseq_reads_the_sentences_and_labels_of_each_task(name, vocabulary, tmp_path):
    task, subwords = glue_task(name), vocabulary.subwords
    write_raw(tmp_path / "raw", name)
    made = glue.prepare(name.lower(), tmp_path / "raw", tmp_path / "out", vocabulary)
    for split in task.files:
        examples, fairseq_task = loaded(tmp_path / "out", split, task)
        words = [fairseq_task.source_dictionary.index(w) for w in subwords.encode(A)]
        expected = [0, *words, 2]
        if len(task.inputs) == 2:
            second = subwords.encode(B.strip())
            expected += [2, *(fairseq_task.source_dictionary.index(w) for w in second), 2]
        labels = FORMS[name][2 if split == "train" else 3]
        for example, label in zip(examples, labels, strict=True):
            assert example["net_input.src_tokens"].tolist() == expected
            if task.labels:
                assert example["target"].tolist() == [task.labels.index(label)]
            else:
                assert example["target"] == pytest.approx([float(label) / 5])
        if split != "train":
            first = 5 if "#" in FORMS[name][1][:1] else 0
            rows = "".join(f"{k}\t{label}\n" for k, label in enumerate(labels, first))
            references = tmp_path / "out" / f"references.{split}.tsv"
            assert references.read_text() == f"index\tlabel\n{rows}"
    assert made.summary["splits"]["valid"]["unknown"] == 0
    assert f"2 examples, but {task.sizes['train']:,} are published" in made.summary["warnings"][0]


@pytest.mark.parametrize("name", ["RTE", "MRPC"])
def test_files_may_be_gzipped(name, vocabulary, tmp_path):
    write_raw(tmp_path / "raw", name)
    glue.prepare(name, tmp_path / "raw", tmp_path / "plain", vocabulary)
    for path in list((tmp_path / "raw" / name).iterdir()):
        path.with_suffix(".tsv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    glue.prepare(name, tmp_path / "raw", tmp_path / "gzipped", vocabulary)
    for file in ("input0/train.bin", "label/train.bin", "references.valid.tsv"):
        plain, gzipped = ((tmp_path / out / file).read_bytes() for out in ("plain", "gzipped"))
        assert plain == gzipped


@pytest.mark.parametrize("ids", ["dev_ids.tsv", "mrpc_dev_ids.tsv"])
def test_mrpc_may_come_as_microsofts_file_and_the_ids_of_dev(ids, vocabulary, tmp_path):
    head, line, *_ = FORMS["MRPC"]
    rows = [line.format(k % 2).replace("\t1\t2", f"\t{k}\t{k + 100}") for k in range(5)]
    folder = tmp_path / "raw" / "MRPC"
    folder.mkdir(parents=True)
    text = "\r\n".join([head, *rows, ""])
    (folder / "msr_paraphrase_train.txt").write_text(text, encoding="utf-8-sig", newline="")
    with pytest.raises(TextDataError, match="/dev_ids.tsv is missing"):
        glue.prepare("MRPC", tmp_path / "raw", tmp_path / "out", vocabulary)
    (folder / ids).write_text("1\t101\n4\t104\n")
    made = glue.prepare("MRPC", tmp_path / "raw", tmp_path / "out", vocabulary)
    sizes = {split: counts["examples"] for split, counts in made.summary["splits"].items()}
    assert sizes == {"train": 3, "valid": 2}
    references = (tmp_path / "out" / "references.valid.tsv").read_text()
    assert references == "index\tlabel\n0\t1\n1\t0\n"


def test_broken_lines_of_qqp_are_left_out_and_counted(vocabulary, tmp_path):
    write_raw(tmp_path / "raw", "QQP")
    with (tmp_path / "raw" / "QQP" / "train.tsv").open("a") as file:
        file.write("8\t1\t2\tonly one question\n")
    made = glue.prepare("QQP", tmp_path / "raw", tmp_path / "out", vocabulary)
    assert made.summary["splits"]["train"]["examples"] == 2
    assert made.summary["warnings"][0] == "train: 1 broken lines were left out."


@pytest.mark.parametrize("limit", [6, 9, 14])
def test_long_examples_lose_the_end_of_the_longer_sentence_alone(limit, vocabulary, tmp_path):
    write_raw(tmp_path / "raw", "RTE")
    made = glue.prepare("rte", tmp_path / "raw", tmp_path / "out", vocabulary, max_positions=limit)
    assert made.summary["splits"]["train"]["shortened"] == 2
    examples, fairseq_task = loaded(tmp_path / "out", "train", glue_task("RTE"))
    tokens = examples[0]["net_input.src_tokens"].tolist()
    assert len(tokens) == limit
    assert [tokens[0], tokens[-1]] == [0, 2]
    middle = tokens.index(2)
    assert tokens[middle + 1] == 2
    assert abs((middle - 1) - (limit - middle - 3)) <= 1  # about equally long
    words = [fairseq_task.source_dictionary.index(w) for w in vocabulary.subwords.encode(A)]
    assert tokens[1:middle] == words[: middle - 1]


RTE_HEAD = "index\tsentence1\tsentence2\tlabel\n"


@pytest.mark.parametrize(
    ("name", "file", "text", "message"),
    [
        ("RTE", "train.tsv", None, "train.tsv is missing (so is train.tsv.gz)"),
        ("RTE", "train.tsv", RTE_HEAD, "holds no example for train"),
        ("RTE", "train.tsv", "index\tsentence1\tlabel\n", "must have the column 'sentence2'"),
        ("RTE", "dev.tsv", f"{RTE_HEAD}0\ta\tb\tmaybe\n", "must be one of entailment, not_entail"),
        ("RTE", "dev.tsv", f"{RTE_HEAD}0\ta\tb\n", "line 2 must have 4 columns, but has 3"),
        ("RTE", "dev.tsv", f"{RTE_HEAD}\ta\tb\tentailment\n", "an example without an index"),
        ("RTE", "dev.tsv", RTE_HEAD + "0\ta\tb\tentailment\n" * 2, "has the index '0' twice"),
        ("STS-B", "dev.tsv", lines_of("STS-B", ["5.5"]), "must be from 0 to 5, but is '5.5'"),
        ("STS-B", "dev.tsv", lines_of("STS-B", ["high"]), "must be from 0 to 5, but is 'high'"),
        ("CoLA", "train.tsv", "sentence\tlabel\nno\t1\n", "line 1 must have 4 columns, but has 2"),
    ],
)
def test_a_bad_file_leaves_nothing(name, file, text, message, vocabulary, tmp_path):
    write_raw(tmp_path / "raw", name)
    path = tmp_path / "raw" / name / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(TextDataError) as error:
        glue.prepare(name, tmp_path / "raw", tmp_path / "out", vocabulary)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert [left.name for left in tmp_path.iterdir()] == ["raw"]


def test_what_does_not_fit_is_refused(vocabulary, tmp_path):
    write_raw(tmp_path / "raw", "RTE")
    with pytest.raises(UsageError, match="`TASK` must be one of CoLA, .*, but is 'wnli'"):
        glue.prepare("wnli", tmp_path / "raw", tmp_path / "out", vocabulary)
    with pytest.raises(UsageError, match="at least 6, but is 5"):
        glue.prepare("rte", tmp_path / "raw", tmp_path / "out", vocabulary, max_positions=5)
    (tmp_path / "dict.txt").write_text("a 1\nb 1\n")
    other = Vocabulary(vocabulary.subwords, tmp_path / "dict.txt")
    with pytest.raises(TextDataError, match="dict.txt must be of the same BPE, but lacks"):
        glue.prepare("rte", tmp_path / "raw", tmp_path / "out", other)
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_is_chosen_in_one_way(vocabulary, tmp_path):
    bpe = vocabulary.dictionary.parent
    with pytest.raises(UsageError, match="`--like` replaces"):
        Vocabulary.chosen(like=tmp_path, bpe="gpt2")
    with pytest.raises(UsageError, match="Give --like, or"):
        Vocabulary.chosen(bpe="gpt2")
    with pytest.raises(TextDataError, match="The dictionary of the model, .*, is missing"):
        Vocabulary.chosen(bpe="gpt2", bpe_dir=bpe, dictionary=tmp_path / "none")
    shutil.copytree(bpe, tmp_path / "bpe")
    shutil.copy(bpe / "dict.txt", tmp_path)
    assert Vocabulary.chosen(like=tmp_path).dictionary == tmp_path / "dict.txt"
