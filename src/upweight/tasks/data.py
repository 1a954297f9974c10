"""A task from data that somebody has: a JSONL or Parquet file, or a Hugging Face data set."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from upweight.objective.errors import UsageError
from upweight.objective.paths import given_path
from upweight.tasks.extras import optional
from upweight.tasks.jsonl import jsonl_rows
from upweight.tasks.rows import Collected, PromptsTask, collect_prompts

HUB = "hf:"

_HUB_NAME = re.compile(r"hf:(?P<name>[^:]+?)(?::(?P<config>[^:]+))??(?::(?P<split>[^:]+))?")

_SAVED = ("state.json", "dataset_dict.json")
"""What `save_to_disk` leaves in a folder, for one split and for several."""


class DataTask(PromptsTask):
    """A task from a file or a data set; which one, its name says.

    - `train.parquet`: a Parquet file (extra `datasets`).
    - `hf:NAME`, `hf:NAME:SPLIT`, `hf:NAME:CONFIG:SPLIT`: a data set by its name on the Hugging Face hub, or a folder
      (extra `datasets`). The split is `train` where it is not given.
    - anything else: a JSONL file, UTF-8, one object a line.

    Rows are those of `RowsTask`. A row's id is its index among the rows, so rows with the same words stay two rows.

    Raises:
        UsageError: the data is not there or has no rows; or rows cannot be used: the first five are named as
            file:line with the reason, all are counted, and the error is chained to the first cause.
    """

    def __init__(self, source: str | Path, held_out: str | Path | None = None, *, skip_bad_rows: bool = False) -> None:
        """Read and validate the rows.

        Args:
            source: training rows.
            held_out: rows for evaluation, in a file or split of their own; None = none.
            skip_bad_rows: leave unusable rows out and count them, instead of refusing the data.
        """
        name = re.sub(r"\W+", "-", str(source).removeprefix(HUB)).strip("-")
        super().__init__(
            (name if str(source).startswith(HUB) else Path(source).stem) or "data",
            read_data(source, skip_bad_rows=skip_bad_rows),
            None if held_out is None else read_data(held_out, skip_bad_rows=skip_bad_rows),
        )


def read_data(source: str | Path, *, skip_bad_rows: bool = False) -> Collected:
    """Read and validate the rows of a file or a data set; arguments and errors as `DataTask` says.

    Returns:
        One prompt per usable row, in order, and what there is to say about them.
    """
    if str(source).startswith(HUB):
        return collect_prompts(_hub_rows(str(source)), f"The data set {source}", skip_bad_rows=skip_bad_rows)
    path = given_path(source, "The data file")
    rows = _parquet_rows(path) if path.suffix.lower() == ".parquet" else jsonl_rows(path)
    try:
        return collect_prompts(rows, f"The data file {source}", skip_bad_rows=skip_bad_rows)
    except OSError as error:
        raise UsageError(f"The data file {source} cannot be read: {error.strerror or error}.") from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, object]]:
    """(file, row number from 0), row: Parquet has no lines."""
    parquet = optional("pyarrow.parquet", "datasets", f"The Parquet file {path}")
    number = 0
    with path.open("rb") as file:
        try:
            for batch in parquet.ParquetFile(file).iter_batches():
                for row in batch.to_pylist():
                    yield f"{path}, row {number}", row
                    number += 1
        except ValueError as error:  # pyarrow's ArrowInvalid is one
            raise UsageError(f"The data file {path} is no Parquet file that can be read: {error}.") from error


def _hub_rows(source: str) -> Iterator[tuple[str, object]]:
    match = _HUB_NAME.fullmatch(source)
    if match is None:
        raise UsageError(
            "A Hugging Face data set is written hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT. "
            f"Got {source!r} instead."
        )
    for number, row in enumerate(_loaded(source, match["name"], match["config"], match["split"])):
        yield f"{source}, row {number}", row


def _loaded(source: str, name: str, config: str | None, split: str | None) -> Any:
    """One split of a data set, as it iterates over rows."""
    datasets = optional("datasets", "datasets", f"The data set {source}")
    try:
        if any((Path(name) / file).is_file() for file in _SAVED):
            found = datasets.load_from_disk(name)
            if split is not None and not isinstance(found, dict):
                raise UsageError(f"The folder {name} holds a single split: leave {split!r} out.")
        else:
            found = datasets.load_dataset(name, config)
        if not isinstance(found, dict):
            return found
        part = split or _only(source, found)
        if part not in found:
            raise UsageError(f"The data set {source} has no split {part!r}. It has: {', '.join(found)}.")
        return found[part]
    except UsageError:
        raise
    except Exception as error:
        # What its dependencies raise (network, formats, scripts) comes out of datasets as it is: no common base.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"The data set {source} cannot be loaded: {reason[:300]}") from error


def _only(source: str, found: dict[str, Any]) -> str:
    """The split that is meant where none is given."""
    if "train" in found:
        return "train"
    if len(found) == 1:
        return next(iter(found))
    raise UsageError(f"The data set {source} has no split 'train'; choose one of: {', '.join(found)}.")
