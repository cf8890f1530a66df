"""The file of ``minikv evaluate --record FILE``: whole after every row, so that a run that was cut goes on."""

import json
from typing import TYPE_CHECKING, Any

from minikv.cli.files import ReportFile
from minikv.errors import ConfigError, user_path

if TYPE_CHECKING:
    from minikv.eviction.evaluate.rows import Row


class Record:
    """``rows`` of the file at ``path``, and those that are added; without a path nothing is read or written.

    ``same``: what all rows of a file share. Raises ``ConfigError`` for a file of other values, one that is no record,
    and one that cannot be read or written; the file is left as it was.
    """

    def __init__(self, path: str | None, same: dict[str, Any]):
        self._path, self._same = path, same
        self.rows: list[Row] = []
        if path is None:
            return
        with ReportFile(path):  # an unwritable place raises before the long run
            pass
        self.rows = self._read(path)

    def add(self, row: "Row") -> None:
        """Write the file with ``row``, if it is new."""
        if self._path is None or any((row.question, row.way) == (old.question, old.way) for old in self.rows):
            return
        self.rows.append(row)
        told = self._same | {"rows": [each.as_dict() for each in self.rows]}
        with ReportFile(self._path) as file:
            file.write(json.dumps(told) + "\n")

    def _read(self, path: str) -> "list[Row]":
        from minikv.eviction.evaluate.rows import Row

        try:
            content = user_path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise ConfigError("evaluate_no_record", path=path) from error
        if not content:
            return []
        try:
            told = json.loads(content)
            rows = [Row.from_dict(row) for row in told["rows"]]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError("evaluate_no_record", path=path) from error
        for name, value in self._same.items():
            if told.get(name) != value:
                raise ConfigError(
                    "evaluate_other_settings", path=path, name=name, theirs=told.get(name), ours=value
                )
        return rows
