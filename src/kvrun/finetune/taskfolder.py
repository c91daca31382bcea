"""Tasks of lm-eval in a folder of this machine: read as data, never as code, and bound to a digest.

A task is a YAML file as lm-eval reads it, its examples JSON Lines beside it. What would run code or
fetch something is refused before anything starts.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from kvrun.finetune.errors import FineTuneError, ToolsMissingError

MAX_FILES = 200
MAX_BYTES = 256 << 20
METRICS = (
    "acc",
    "acc_norm",
    "bits_per_byte",
    "byte_perplexity",
    "exact_match",
    "perplexity",
    "word_perplexity",
)
"""What lm-eval computes without fetching anything."""
_YAML, _DATA = (".yaml", ".yml"), (".json", ".jsonl")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}\.(ya?ml|jsonl?)")
_KEYS = frozenset(
    {
        "dataset_kwargs",
        "dataset_path",
        "description",
        "doc_to_choice",
        "doc_to_decontamination_query",
        "doc_to_target",
        "doc_to_text",
        "fewshot_config",
        "fewshot_delimiter",
        "fewshot_split",
        "filter_list",
        "gen_prefix",
        "generation_kwargs",
        "metadata",
        "metric_list",
        "num_fewshot",
        "output_type",
        "repeats",
        "should_decontaminate",
        "tag",
        "target_delimiter",
        "task",
        "task_alias",
        "test_split",
        "training_split",
        "validation_split",
    }
)
"""What lm-eval reads as data. Others name code, other files or what is fetched."""
DataFiles: TypeAlias = "str | list[DataFiles] | dict[str, DataFiles]"
"""Names of files with examples: one, several, or either by split."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task: the files with its examples, and whatever else it says, as lm-eval reads it."""

    name: str
    data_files: DataFiles
    rest: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """The tasks that were named, and ``sha256`` (hex) over the folder's names and contents.

    ``examples`` are the contents that were digested, by file: what is measured later is what the
    digest names, whatever the folder has by then.
    """

    folder: Path
    names: tuple[str, ...]
    sha256: str
    tasks: tuple[Task, ...]
    examples: Mapping[str, bytes]

    def write(self, place: Path) -> None:
        """The tasks and their examples as files that lm-eval reads, in an empty folder."""
        for name, data in self.examples.items():
            (place / name).write_bytes(data)
        for number, task in enumerate(self.tasks):
            kwargs = {
                "data_files": _absolute(task.data_files, place),
                "cache_dir": str(place / "cache"),
            }
            # JSON is YAML, and nothing in it can be a tag.
            text = json.dumps({**task.rest, "dataset_kwargs": kwargs})
            (place / f"task{number}.yaml").write_text(text, encoding="utf-8")


def read_tasks(folder: Path, names: Sequence[str]) -> TaskFolder:
    """The tasks of these names in a folder.

    Raises FineTuneError that names the file for what is missing, malformed, would run code or would
    be fetched; ToolsMissingError where YAML cannot be read.
    """
    if not names:
        raise FineTuneError("no task is named", hint="Name one with --task.")
    files = dict(_files(folder))
    digest = sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\n{len(data)}\n".encode() + sha256(data).digest())
    found: dict[str, Task] = {}
    for name, data in sorted(files.items()):
        if Path(name).suffix in _YAML:
            task = _task(name, data, set(files))
            found[task.name] = task
    missing = [name for name in names if name not in found]
    if missing:
        raise FineTuneError(
            f"{folder.name} has no task {missing[0][:80]!r}",
            hint=f"It has: {', '.join(sorted(found)) or 'none'}.",
        )
    chosen = tuple(dict.fromkeys(names))
    tasks = tuple(found[name] for name in chosen)
    needed = {file for task in tasks for file in _named(task.data_files, task.name)}
    return TaskFolder(
        folder.absolute(),
        chosen,
        digest.hexdigest(),
        tasks,
        {name: files[name] for name in sorted(needed)},
    )


def check_file_names(names: Iterable[str]) -> None:
    """Whether files that were handed over can be a task folder. Raises FineTuneError.

    A name is that of a file in it: no path, nothing hidden.
    """
    given = list(names)
    if len(given) > MAX_FILES:
        raise FineTuneError(f"{len(given)} files of tasks were given; at most {MAX_FILES} may be")
    for name in given:
        if not _FILE_NAME.fullmatch(name):
            raise FineTuneError(
                f"{name[:80]!r} is no name of a task's file",
                hint="Letters, digits, . _ - and one of .yaml, .yml, .json, .jsonl at its end.",
            )


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    size = 0
    try:
        paths = sorted(folder.iterdir())
        if len(paths) > MAX_FILES:
            raise FineTuneError(f"{folder} has more than {MAX_FILES} files")
        for path in paths:
            if path.suffix not in (*_YAML, *_DATA):
                continue
            if path.is_symlink() or not path.is_file():
                raise FineTuneError(f"{path} is a link or no plain file")
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1 - size)
            size += len(data)
            if size > MAX_BYTES:
                raise FineTuneError(f"{folder} has more than {MAX_BYTES} bytes of tasks")
            yield path.name, data
    except OSError as error:
        raise FineTuneError(f"{folder} cannot be read: {error.strerror}") from None


def _task(name: str, data: bytes, files: set[str]) -> Task:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise ToolsMissingError(
            "tasks of lm-eval need PyYAML, which is not installed",
            hint='pip install "kvrun[lm-eval]"',
        ) from None
    try:
        for event in yaml.parse(data, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):  # of which a few lines stand for millions
                raise FineTuneError(
                    f"{name}, line {event.start_mark.line + 1}: aliases (*{event.anchor[:40]}) are "
                    "not read here",
                    hint="Write it out in full.",
                )
        task = yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        raise FineTuneError(
            f"{name} cannot be read: {said}",
            hint="Tags such as !function name code, which is not run here.",
        ) from None
    if not isinstance(task, dict) or not isinstance(task.get("task"), str):
        raise FineTuneError(f"{name} is no task: it needs a name in 'task'")
    for key in task:
        if key not in _KEYS:
            raise FineTuneError(
                f"{name}: {str(key)[:80]!r} is not read here",
                hint=f"Write it out in full. Read are: {', '.join(sorted(_KEYS))}.",
            )
    if task.get("dataset_path") != "json":
        raise FineTuneError(
            f"{name}: dataset_path must be json: nothing is fetched",
            hint="Put the examples beside it as JSON Lines, and name them in data_files.",
        )
    kwargs = task.get("dataset_kwargs")
    if not isinstance(kwargs, dict) or set(kwargs) != {"data_files"}:
        raise FineTuneError(f"{name}: dataset_kwargs must have data_files and nothing else")
    for file in _named(kwargs["data_files"], name):
        if file not in files or Path(file).suffix not in _DATA:
            raise FineTuneError(f"{name}: {file[:80]!r} is no .jsonl file beside it")
    metrics = task.get("metric_list")
    if not isinstance(metrics, list) or not metrics:
        raise FineTuneError(f"{name}: metric_list must name a metric: {', '.join(METRICS)}")
    for metric in metrics:
        if not isinstance(metric, dict) or metric.get("metric") not in METRICS:
            raise FineTuneError(f"{name}: metrics are {', '.join(METRICS)}")
        if "hf_evaluate" in metric:
            raise FineTuneError(f"{name}: 'hf_evaluate' is not read here: it would be fetched")
    rest = {key: value for key, value in task.items() if key != "dataset_kwargs"}
    return Task(task["task"], kwargs["data_files"], rest)


def _named(files: object, name: str) -> list[str]:
    """The files in ``data_files``: a name, a list of them, or either by split."""
    if isinstance(files, str):
        return [files]
    if isinstance(files, list):
        return [one for item in files for one in _named(item, name)]
    if isinstance(files, dict) and files:
        return [one for item in files.values() for one in _named(item, name)]
    raise FineTuneError(f"{name}: data_files must name files")


def _absolute(files: DataFiles, folder: Path) -> DataFiles:
    if isinstance(files, str):
        return str(folder / files)
    if isinstance(files, list):
        return [_absolute(item, folder) for item in files]
    return {split: _absolute(item, folder) for split, item in files.items()}
