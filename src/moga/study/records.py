"""Results on disk: `study.json` (what all runs share) and `records.jsonl` (one line per finished run).

A record is believed when its line is whole JSON and its key is the sha256 of its configuration. A line that was cut
by a crash can only be the last one; it is dropped, and the next append writes over it. So a directory can be read at
any moment, also while a study is writing to it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FORMAT = 1  # of study.json, and of a record that does not state its own ("format")
STUDY_FILE = "study.json"
PART_FILE = f"{STUDY_FILE}.part"
RECORDS_FILE = "records.jsonl"
LOCK_FILE = "study.lock"
KINDS = {"settings": dict, "corpus": dict, "commands": list}  # of the entries of study.json
# Entries of a run's configuration that are not those of its study.
OF_A_RUN = {"recipe", "width", "depth", "lr", "seed", "size", "plant", "layers", "norm", "trained"}

SPACE, RIGHTS = "free some space", "make it writable or give another directory (--out)"
ADVICE = {errno.ENOSPC: SPACE, errno.EDQUOT: SPACE, errno.EFBIG: SPACE} | dict.fromkeys(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR), RIGHTS
)


class StudyError(ValueError):
    """A study that cannot go on; the text says what to do."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses inside, as a StudyError that says what to do about it."""
    try:
        yield
    except OSError as error:
        advice = ADVICE.get(error.errno or 0, "put that right")
        raise StudyError(
            f"{error.strerror}: {path}; the finished runs there are kept; {advice}, and the same command goes on"
        ) from error


def config_key(config: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON text: keys sorted, no spaces, floats in their shortest exact form.

    >>> config_key({"width": 32, "lr": 0.1}) == config_key({"lr": 0.1, "width": 32})
    True
    """
    text = json.dumps(dict(config), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def run_record(config: Mapping[str, Any], result: Any, environment: Mapping[str, Any]) -> dict[str, Any]:
    """What a line of a study holds of one finished run.

    >>> run_record({"lr": 0.1}, {"loss": 2.0}, {})["key"] == config_key({"lr": 0.1})
    True
    """
    return {"key": config_key(config), "config": dict(config), "result": result, "environment": dict(environment)}


def append_record(directory: str | Path, record: Mapping[str, Any]) -> None:
    """Add one line, on the disk when this returns. A cut last line is removed first, so lines never run together.

    Raises:
        StudyError: the line cannot be written (a full disk); then the file is as it was.
    """
    line = json.dumps(dict(record), allow_nan=False).encode() + b"\n"
    path = Path(directory) / RECORDS_FILE
    # Unbuffered: nothing is left in memory that closing the file would try to write once more.
    with writing(path), open(path, "r+b" if path.exists() else "w+b", buffering=0) as file:
        lines = file.read()
        kept = lines.rfind(b"\n") + 1
        if lines[kept:] and _parse(lines[kept:]) is not None:
            kept, line = len(lines), b"\n" + line
        file.truncate(kept)
        file.seek(kept)
        try:
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(kept)
            raise


def read_records(directory: str | Path) -> list[dict[str, Any]]:
    """All finished runs, each once, in the order of the file; [] if there is no file. A cut last line is dropped.

    Raises:
        StudyError: a line in the middle that is no JSON, a record of a newer format, one whose key is not that of its
            configuration, or one without a result.
    """
    path = Path(directory) / RECORDS_FILE
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    records: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        record = _parse(line)
        if record is None:
            if line and number < len(lines):
                raise StudyError(f"{path}, line {number}: not a JSON object; remove the line and run the study again")
            continue
        _check_format(f"{path}, line {number}", record.get("format", FORMAT))
        config = record.get("config")
        if not isinstance(config, dict) or record.get("key") != config_key(config):
            raise StudyError(
                f"{path}, line {number}: the key is not that of the configuration, so one of them was edited; "
                "remove the line and run the study again"
            )
        if not isinstance(record.get("result"), dict):
            raise StudyError(f"{path}, line {number}: a run without a result; remove the line and run the study again")
        records[record["key"]] = record
    return list(records.values())


def read_runs(directory: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """`read_study` and `read_records`, where all runs are of that study.

    Raises:
        StudyError: what these two raise; a run under other settings, which cannot be compared with the others.
    """
    study, records = read_study(directory), read_records(directory)
    settings = study["settings"]
    for config in (record["config"] for record in records):
        for name in [*settings, *sorted(config.keys() - settings.keys() - OF_A_RUN)]:
            if config.get(name) != settings.get(name):
                raise StudyError(
                    f"{Path(directory) / RECORDS_FILE} holds a run of another study ({name} is {config.get(name)}, and "
                    f"{settings.get(name)} in {STUDY_FILE}); runs under different settings cannot be compared, so keep "
                    "those of one study in a directory"
                )
    return study, records


def _parse(line: bytes) -> dict[str, Any] | None:
    """The line's JSON object, or None. No beginning of an object is an object, so a cut line gives None."""
    try:
        value = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _no_number(word: str) -> None:
    """NaN and Infinity are not JSON, and no record holds them."""
    raise ValueError(word)


def read_study(directory: str | Path) -> dict[str, Any]:
    """What all runs of the directory share: format, settings, corpus, commands.

    Raises:
        StudyError: no study there, or one that this version cannot read.
    """
    path = Path(directory) / STUDY_FILE
    if not path.exists():
        raise StudyError(f"{directory} holds no study ({STUDY_FILE} is missing); name a directory that a study wrote")
    study = _parse(path.read_bytes())
    if study is not None:
        _check_format(str(path), study.get("format"))
    whole = study is not None and all(isinstance(study.get(name), kind) for name, kind in KINDS.items())
    if study is None or study.get("format") != FORMAT or not whole:
        raise StudyError(f"{path} is not a study of format {FORMAT}; it is damaged")
    return study


def _check_format(place: str, format: Any) -> None:
    if isinstance(format, int) and format > FORMAT:
        raise StudyError(
            f"{place}: of format {format}, which a newer moga wrote, and this one reads {FORMAT}; update moga, or give "
            "another directory (--out)"
        )


def open_study(
    directory: str | Path, settings: Mapping[str, Any], corpus: Mapping[str, Any], command: str = ""
) -> None:
    """Begin a study in a new or empty directory, or go on with one that has the same settings.

    A study that has no finished run yet is begun anew where the settings are others: nothing is lost by that. Until
    `close_study` the file says ``unfinished``: the command that goes on, "" where there is none.

    Raises:
        StudyError: the path is a file, holds other files, holds runs under other settings, or cannot be written.
    """
    folder = Path(directory)
    check_place(folder)
    commands: list[str] = []
    if (folder / STUDY_FILE).exists():
        study = read_study(folder)
        if names := _different(study["settings"], settings):
            _refuse_if_runs(folder, study["settings"], settings, names)
        else:
            commands = study["commands"]
    if command and command not in commands:
        commands = [*commands, command]
    study = {"format": FORMAT, "settings": dict(settings), "corpus": dict(corpus), "commands": commands}
    _write_study(folder, study | {"unfinished": command})


def close_study(directory: str | Path) -> None:
    """Everything that was asked for is there: the file says so by not saying ``unfinished``."""
    study = read_study(directory)
    study.pop("unfinished", None)
    _write_study(Path(directory), study)


def _write_study(folder: Path, study: Mapping[str, Any]) -> None:
    with writing(folder / STUDY_FILE):
        folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / STUDY_FILE, (json.dumps(study, indent=2) + "\n").encode(), folder / PART_FILE)


def replace_file(path: Path, content: bytes, part: Path) -> None:
    """Write a file as ``part`` beside its place and move it there: a crash leaves the old one or the new one.

    Raises StudyError where it cannot be written; then the old file is as it was.
    """
    with writing(path):
        try:
            part.write_bytes(content)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def check_place(folder: Path) -> None:
    """Whether a study is in this place or may begin there.

    Raises:
        StudyError: the path is a file, or holds other files.
    """
    if folder.exists() and not folder.is_dir():
        raise StudyError(f"{folder} is a file; give a directory (--out) for the study")
    if not folder.exists() or (folder / STUDY_FILE).exists():
        return
    if any(path.name not in (PART_FILE, LOCK_FILE) for path in folder.iterdir()):
        raise StudyError(
            f"{folder} holds files but no study ({STUDY_FILE} is missing); give a new or empty directory (--out)"
        )


def own_functions(settings: Mapping[str, Any]) -> str:
    """The functions that make model and data, "" where moga makes both.

    >>> own_functions({"family": "mine:net", "data": ""})
    'mine:net'
    """
    words = (str(settings.get(name, "")) for name in ("family", "data"))
    return " or ".join(word for word in words if ":" in word)


def _different(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [name for name in [*old, *(name for name in new if name not in old)] if old.get(name) != new.get(name)]


def _refuse_if_runs(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any], names: Sequence[str]) -> None:
    if read_records(folder):
        said = {"code": f"the code of {own_functions(new)}, or of a value that it uses, changed"}
        differences = "; ".join(said.get(name, f"{name}: {old.get(name)} there, {new.get(name)} now") for name in names)
        raise StudyError(
            f"{folder} holds a study with other settings ({differences}); runs under different settings cannot be "
            "compared, so give another directory (--out) or the settings of the study"
        )
