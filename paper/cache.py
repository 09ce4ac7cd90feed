"""What a long study has measured so far, so that an interrupted one goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from neuralef.report import write_json


class ResultCache:
    """Records by their names in a JSON file, of a run with given settings.

    `machine` is what the records are made on from now on; `machines` all that made some.
    """

    def __init__(self, path: Path, config: dict[str, Any], machine: dict[str, Any]) -> None:
        self.path, self.machine = path, machine
        config = json.loads(json.dumps(config))
        self.content: dict[str, Any] = {
            "config": config, "records": {}, "seconds": {}, "machines": [],
        }  # fmt: skip
        if path.exists():
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
                if set(found) != set(self.content):
                    raise ValueError("it lacks some of its parts")
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path} is damaged or too old: {error}; remove it") from error
            if found["config"] != config:
                raise ValueError(f"{path} belongs to a run with other settings: remove it")
            self.content = found

    def start(self) -> None:
        """Write the settings, before the first record is there."""
        write_json(self.path, self.content)

    def __contains__(self, key: str) -> bool:
        return key in self.content["records"]

    def __getitem__(self, key: str) -> Any:
        return self.content["records"][key]

    def seconds(self, name: str) -> dict[str, float]:
        """Of the parts that the posteriors of a case share."""
        return self.content["seconds"].get(name, {})

    @property
    def environment(self) -> dict[str, Any]:
        """The first machine that made a record, and the others below it."""
        first, *others = self.machines or [self.machine]
        return first | ({"later sessions": others} if others else {})

    @property
    def machines(self) -> list[dict[str, Any]]:
        """What the records were made on, in the order of their sessions."""
        return self.content["machines"]

    def write(self, key: str, record: Any, name: str, seconds: dict[str, float]) -> None:
        """Keep a record, on disk."""
        self.content["records"][key] = record
        self.content["seconds"][name] = dict(seconds)
        if self.machine not in self.machines:
            self.machines.append(self.machine)
        write_json(self.path, self.content)
