"""`moga.study.load`: the result of a study that was made before, by a command or a call."""

from __future__ import annotations

from pathlib import Path

from moga.api.check import Check
from moga.api.smoothness import Smoothness
from moga.api.transfer import Transfer

# By the word in the settings of a study; one of the learning rate has none.
KINDS: dict[str | None, type[Transfer | Check | Smoothness]] = {
    None: Transfer,
    "check": Check,
    "smoothness": Smoothness,
}


def load(directory: str | Path) -> Transfer | Check | Smoothness:
    """Read the records of a directory; a study that still runs has those that it finished.

    Raises StudyError, a ValueError, where the directory holds no study, or none that has something to show.
    """
    from moga.study.records import StudyError, read_study

    study = read_study(directory)
    measure = study["settings"].get("measure")
    if measure not in KINDS:
        raise StudyError(
            f"{directory} holds records of {measure!r}, which no study of moga draws; what wrote them does: "
            f"{', '.join(study['commands'])}"
        )
    return KINDS[measure](Path(directory))
