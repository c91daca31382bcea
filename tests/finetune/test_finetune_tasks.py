"""Tasks of lm-eval: from files alone, bound to their digest, measured on base and fine-tune."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import finetune_rig as rig
import pytest
from jinja2 import Environment, StrictUndefined, UndefinedError
from jinja2.exceptions import SecurityError

from kvrun.finetune.errors import FineTuneCancelledError, FineTuneError, ToolsMissingError
from kvrun.finetune.evaluation import check_folder, decode_evaluation
from kvrun.finetune.finishing import Reporter
from kvrun.finetune.harness import keep_templates_in
from kvrun.finetune.job import begin, resume
from kvrun.finetune.taskfolder import read_tasks

pytest.importorskip("yaml")
TASK = """\
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: colours.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_choice: [" red", " blue", " green"]
doc_to_target: "{{label}}"
target_delimiter: ""
metric_list: [{metric: acc}]
"""


def tasks_in(folder: Path, text: str = TASK) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "colours.yaml").write_text(text)
    lines = [
        {"prompt": f"the {thing} is {colour}. its colour:", "label": number}
        for thing in rig.THINGS[:4]
        for number, colour in enumerate(rig.COLOURS)
    ]
    (folder / "colours.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.long
def test_tasks_that_are_named_are_measured_on_both_and_signed(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    import torch

    torch.set_num_threads(1)
    site = rig.make_site(tmp_path)
    tasks = read_tasks(tasks_in(tmp_path / "tasks"), ["colours"])
    data = site.write("train.jsonl", rig.pairs())
    said: list[str] = []

    def stop() -> bool:
        return any("evaluating the base" in text for text in said)

    around = replace(site.around, should_stop=stop, report=Reporter(say=said.append))
    with pytest.raises(FineTuneCancelledError):
        begin(around, "good", str(site.base), data, None, rig.PLAN, tasks)
    changed = (tmp_path / "tasks" / "colours.jsonl").read_text()
    (tmp_path / "tasks" / "colours.jsonl").write_text(changed + "\n")
    with pytest.raises(FineTuneError, match="not those that the job began with"):
        resume(site.around, "good")
    (tmp_path / "tasks" / "colours.jsonl").write_text(changed)
    done = resume(site.around, "good")
    assert done.tasks is not None
    (acc,) = (item for item in done.tasks.scores if item.metric == "acc")
    assert (acc.task, acc.examples) == ("colours", 12)
    assert 0 <= acc.base < acc.tuned <= 1
    assert done.tasks.harness.startswith("lm-eval 0.")
    assert done.tasks.sha256 == tasks.sha256
    folder = site.store.folder("good")
    assert check_folder(folder, site.known).holds
    assert decode_evaluation((folder / "evaluation.json").read_bytes()) == done
    assert not list(tmp_path.rglob("*.arrow")), "no copy of the examples is left"


def _with(**changed: Any) -> Callable[[str], str]:
    def change(text: str) -> str:
        import yaml

        task = yaml.safe_load(text)
        task.update(changed)
        return json.dumps({name: value for name, value in task.items() if value is not None})

    return change


def _with_aliases_of(first: str) -> Callable[[str], str]:
    """Three lines that stand for a hundred names, or, where the first names itself, for no end."""
    lists = f"metadata:\n  a0: &a0 [{first}]\n  a1: &a1 [{', '.join(['*a0'] * 100)}]\n"
    return lambda text: text + lists


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text + "process_results: !function utils.score\n", "colours.yaml cannot"),
        (
            lambda text: text + "x: !!python/object/apply:os.system ['true']\n",
            "colours.yaml cannot",
        ),
        (_with(dataset_path="allenai/ai2_arc"), "dataset_path must be json"),
        (_with(dataset_kwargs={"data_files": "https://example.com/x.jsonl"}), "beside it"),
        (_with(dataset_kwargs={"data_files": "../colours.jsonl"}), "beside it"),
        (_with(dataset_kwargs={"data_files": "/etc/passwd"}), "beside it"),
        (_with(dataset_kwargs={"data_files": {}}), "must name files"),
        (
            _with(dataset_kwargs={"data_files": "colours.jsonl", "trust_remote_code": True}),
            "nothing else",
        ),
        (_with(include="other.yaml"), "'include' is not read"),
        (_with(use_prompt="other.yaml:one"), "'use_prompt' is not read"),
        (_with(unsafe_code=True), "'unsafe_code' is not read"),
        (_with(metric_list=[{"metric": "acc", "hf_evaluate": True}]), "'hf_evaluate' is not read"),
        (_with(metric_list=[{"metric": "bertscore"}]), "metrics are acc"),
        (_with(metric_list=None), "must name a metric"),
        (_with(task=None), "is no task"),
        (lambda text: "- 1\n", "is no task"),
        (lambda text: "a: [", "cannot be read"),
        (_with_aliases_of("a.jsonl"), r"colours.yaml, line \d+: aliases \(\*a0\) are not read"),
        (_with_aliases_of("*a0"), r"colours.yaml, line \d+: aliases \(\*a0\) are not read"),
    ],
)
def test_what_would_run_code_or_fetch_something_is_refused(
    tmp_path: Path, change: Callable[[str], str], said: str
) -> None:
    folder = tasks_in(tmp_path / "tasks", change(TASK))
    with pytest.raises(FineTuneError, match=said):
        read_tasks(folder, ["colours"])


def test_templates_of_a_task_do_not_reach_the_process() -> None:
    open_one = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    open_one.filters["twice"] = lambda text: text + text
    # What lm-eval 0.4.13 has in its module.
    utils = SimpleNamespace(env=open_one)
    reach = "{{ cycler.__init__.__globals__.os.getpid() }}"
    assert utils.env.from_string(reach).render() == str(os.getpid())
    keep_templates_in(utils)
    with pytest.raises(SecurityError):
        utils.env.from_string(reach).render()
    assert utils.env.from_string("{{ q|twice }}\n").render(q="a") == "aa\n"
    with pytest.raises(UndefinedError):
        utils.env.from_string("{{ nothing }}").render()
    with pytest.raises(ToolsMissingError, match="not known here"):
        keep_templates_in(SimpleNamespace())


def test_a_task_that_is_not_there_and_a_link_are_named(tmp_path: Path) -> None:
    folder = tasks_in(tmp_path / "tasks")
    with pytest.raises(FineTuneError, match="no task 'shapes'") as found:
        read_tasks(folder, ["shapes"])
    assert "colours" in str(found.value.hint)
    with pytest.raises(FineTuneError, match="no task is named"):
        read_tasks(folder, [])
    (folder / "more.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(FineTuneError, match="is a link"):
        read_tasks(folder, ["colours"])
    with pytest.raises(FineTuneError, match="cannot be read"):
        read_tasks(tmp_path / "none", ["colours"])


def test_the_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    folder = tasks_in(tmp_path / "tasks")
    first = read_tasks(folder, ["colours", "colours"])
    assert first.names == ("colours",)
    (folder / "notes.md").write_text("not a task")
    assert read_tasks(folder, ["colours"]).sha256 == first.sha256
    (folder / "colours.jsonl").rename(folder / "other.jsonl")
    (folder / "colours.yaml").write_text(TASK.replace("colours.jsonl", "other.jsonl"))
    assert read_tasks(folder, ["colours"]).sha256 != first.sha256


def test_what_is_measured_is_what_was_digested_though_the_folder_changes(tmp_path: Path) -> None:
    folder = tasks_in(tmp_path / "tasks")
    examples = (folder / "colours.jsonl").read_bytes()
    tasks = read_tasks(folder, ["colours"])
    (folder / "colours.jsonl").write_bytes(examples.replace(b"red", b"RED"))
    (folder / "colours.yaml").unlink()
    place = tmp_path / "place"
    place.mkdir()
    tasks.write(place)
    (written,) = place.glob("*.yaml")
    task = json.loads(written.read_bytes())
    assert task["doc_to_text"] == "{{prompt}}"
    named = Path(task["dataset_kwargs"]["data_files"]["test"])
    assert named.is_relative_to(place)
    assert named.read_bytes() == examples
