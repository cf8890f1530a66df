"""The file of ``minikv evaluate --record FILE``: whole after every row, so that a run that was cut goes on."""

import json
from typing import TYPE_CHECKING, Any

from minikv.cli.files import ReportFile
from minikv.errors import ConfigError, user_path

if TYPE_CHECKING:
    from minikv.eviction.evaluate.perplexity import Reading
    from minikv.eviction.evaluate.rows import Row


class Record:
    """``rows`` and ``readings`` of the file at ``path``, and those that are added; None: nothing is read or written.

    ``same``: what all rows of a file share. Raises ``ConfigError`` for a file of other values, one that is no record,
    and one that cannot be read or written; the file is left as it was.
    """

    def __init__(self, path: str | None, same: dict[str, Any]):
        self._path, self._same = path, same
        self.rows: list[Row] = []
        self.readings: list[Reading] = []
        if path is None:
            return
        with ReportFile(path):  # an unwritable place raises before the long run
            pass
        self._read(path)

    def add(self, row: "Row | Reading") -> None:
        """Write the file with ``row``, if it is new."""
        if self._path is None or row in self.rows or row in self.readings:
            return
        kept: list[Any] = self.readings if hasattr(row, "nats") else self.rows
        kept.append(row)
        told = self._same | {
            "rows": [each.as_dict() for each in self.rows],
            "readings": [each.as_dict() for each in self.readings],
        }
        with ReportFile(self._path) as file:
            file.write(json.dumps(told) + "\n")

    def _read(self, path: str) -> None:
        from minikv.eviction.evaluate.perplexity import Reading
        from minikv.eviction.evaluate.rows import Row

        try:
            content = user_path(path).read_text(encoding="utf-8")
            if not content:
                return
            told = json.loads(content)
            self.rows = [Row.from_dict(row) for row in told["rows"]]
            self.readings = [Reading.from_dict(row) for row in told["readings"]]
        except FileNotFoundError:
            return
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError("evaluate_no_record", path=path) from error
        for name, value in self._same.items():
            if told.get(name) != value:
                values = {"name": name, "theirs": told.get(name), "ours": value}
                raise ConfigError("evaluate_other_settings", path=path, **values)
