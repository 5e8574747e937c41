"""The placement of Gapless from Python: a process `gapless fleet place`, asked one JSON object a line.

docs/fleet.md describes the lines. The process ends with its standard input, so also with this one.
"""

import json
import os
import subprocess
from typing import Any, Optional

from . import _forks
from ._errors import GaplessError
from ._program import environment, message, program


class Placing:
    """A cluster's account and its queue of requests. Threads may share it."""

    def __init__(self, path: Optional[str] = None) -> None:
        words = [path if path is not None and os.path.isfile(path) else program(), "fleet", "place"]
        self._lock = _forks.lock()
        try:
            # Standard error is read only if the process ends: it writes little there.
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True, encoding="utf-8"
            )
        except OSError as error:
            raise GaplessError(f"the program `gapless` cannot be started: {error}") from None

    def ask(self, op: str, **members: Any) -> dict[str, Any]:
        """Sends one line and returns its answer. An error in the answer becomes a GaplessError."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        with self._lock:
            try:
                process.stdin.write(json.dumps({"op": op, **members}) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except (OSError, ValueError):
                line = ""
        if not line:
            code = process.wait(10)
            said = "" if process.stderr.closed else message(process.stderr.read())
            raise GaplessError(f"`gapless fleet place` ended with {code}: {said or 'it said nothing'}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise GaplessError(str(answer["error"]))
        return answer

    def close(self) -> None:
        process = self._process
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass
        process.wait(10)
