"""The placement of Gapless from Python: a process `gapless fleet place`, asked one JSON object a line.

docs/fleet.md describes the lines. The process ends with its standard input, so also with this one. If it is killed, a
new one is told what the lost one knew: the nodes, the places that were given out, and who waits. Only the mix of sizes
that its policy had seen is lost.
"""

import json
import os
import subprocess
from typing import Any, Optional

from . import _forks
from ._errors import GaplessError
from ._program import environment, message, program


def _places_in(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The places that an answer names: those that were asked for, and of those who waited."""
    own = [answer["place"]] if answer.get("place") and "ok" in answer else answer.get("places", [])
    return [*own, *answer.get("placed", ())]


def _first_pod(members: dict[str, Any]) -> str:
    """The name of a request's pod, or of the first one of its group: all of them are placed together."""
    return str((members.get("pod") or members["pods"][0])["name"])


class _Ended(Exception):
    """The process gave no answer."""


class Placing:
    """A cluster's account and its queue of requests. Threads may share it."""

    def __init__(self, path: Optional[str] = None) -> None:
        self._words = [path if path is not None and os.path.isfile(path) else program(), "fleet", "place"]
        self._lock = _forks.lock()
        self._is_closed = False
        # Settings that a new process must be told, each in the order in which it was said.
        self._nodes: dict[str, dict[str, Any]] = {}
        self._closed: set[str] = set()
        self._pods: dict[str, dict[str, Any]] = {}
        self._places: dict[str, tuple[str, list[int]]] = {}
        # Requests that wait, by the id of the pod or the group, in the order in which they were made.
        self._waiting: dict[str, tuple[str, dict[str, Any]]] = {}
        # Places that requests got when they were told again.
        self._late: list[dict[str, Any]] = []
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        try:
            # Standard error is read only if the process ends: it writes little there.
            return subprocess.Popen(
                self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True, encoding="utf-8"
            )
        except OSError as error:
            raise GaplessError(f"the program `gapless` cannot be started: {error}") from None

    def ask(self, op: str, **members: Any) -> dict[str, Any]:
        """Sends one line and returns its answer. An error in the answer becomes a GaplessError."""
        with self._lock:
            try:
                answer = self._exchange(op, members)
            except _Ended:
                if self._is_closed:
                    raise self._ended() from None
                try:
                    self._restart()
                    answer = self._exchange(op, members)
                except _Ended:
                    raise self._ended() from None
            if "error" not in answer:
                self._note(op, members, answer)
        if "error" in answer:
            raise GaplessError(str(answer["error"]))
        return answer

    def late(self) -> list[dict[str, Any]]:
        """Places of waiting requests that no answer has named, because they came with a new process."""
        with self._lock:
            late, self._late = self._late, []
        return late

    def _exchange(self, op: str, members: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps({"op": op, **members}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (OSError, ValueError):
            line = ""
        if not line.endswith("\n"):
            raise _Ended
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ended(self) -> GaplessError:
        process = self._process
        assert process.stderr is not None
        code = process.wait(10)
        said = "" if process.stderr.closed else message(process.stderr.read())
        return GaplessError(f"`gapless fleet place` ended with {code}: {said or 'it said nothing'}")

    def _note(self, op: str, members: dict[str, Any], answer: dict[str, Any]) -> None:
        """Remembers what the process knows now."""
        if op == "node":
            self._nodes[members["node"]["name"]] = members["node"]
            self._closed.discard(members["node"]["name"])
        elif op == "close":
            self._closed.add(members["node"])
        elif op == "restore":
            name = str(members["pod"]["name"])
            self._pods[name], self._places[name] = members["pod"], (members["node"], members["gpus"])
        elif op in ("ask", "group") and "never" not in answer:
            pods = [members["pod"]] if op == "ask" else members["pods"]
            self._pods.update({str(pod["name"]): pod for pod in pods})
            if "waits" in answer:
                self._waiting.setdefault(str(members["id"] if op == "group" else members["pod"]["name"]), (op, members))
        elif op == "free":
            _, left = self._waiting.pop(members["id"], ("", {}))
            for name in [members["id"], *(str(pod["name"]) for pod in left.get("pods", ()))]:
                self._pods.pop(name, None)
                self._places.pop(name, None)
        if op != "find":
            self._placed(_places_in(answer))

    def _placed(self, places: list[dict[str, Any]]) -> None:
        for place in places:
            self._places[place["id"]] = (place["node"], place["gpus"])
        if places:
            for name in [name for name, (_, members) in self._waiting.items() if _first_pod(members) in self._places]:
                del self._waiting[name]

    def _restart(self) -> None:
        self._stop()
        self._process = self._start()
        for node in self._nodes.values():
            self._told("node", {"node": node})
        for name, (node_name, gpus) in self._places.items():
            self._told("restore", {"pod": self._pods[name], "node": node_name, "gpus": gpus})
        # Closed only now, because nothing is restored on a closed node.
        for name in self._closed:
            self._told("close", {"node": name})
        for op, members in list(self._waiting.values()):
            places = _places_in(self._told(op, members))
            self._placed(places)
            self._late += places

    def _told(self, op: str, members: dict[str, Any]) -> dict[str, Any]:
        answer = self._exchange(op, members)
        if "error" in answer:
            raise GaplessError(f"`gapless fleet place` ended, and a new one refuses what was known: {answer['error']}")
        return answer

    def _stop(self) -> None:
        process = self._process
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass
        process.kill()
        process.wait(10)

    def close(self) -> None:
        process = self._process
        self._is_closed = True
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass
        process.wait(10)
