"""Python with torch imported, once for many programs: a process that forks itself for each.

Most of a test's time was `import torch`, 3 to 6 s of processor for a program that runs for 0.1 s. A program gets a
child of its own: its own memory, card, environment, folder and streams, its own `__main__`, and its end with all that
runs at exit. What it shares is what `import torch` did, before CUDA and before Gapless: neither
is touched here. What a variable changes while torch is imported stays true, since processes with other variables than
GAPLESS_*, which only enable() reads, are kept apart.

The end of an interpreter with torch takes 0.8 s of processor: Python clears torch's modules, and then torch takes back
its operators one by one. A program ends without both, unless the test asks for a whole end.

Programs that are about the start itself (`gapless run`, options of the interpreter, import hooks) do not come here.
"""

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading

# Beyond this many, the one that was not used for longest ends.
KEPT = 4


class Warm:
    """Interpreters by their variables, for one process that runs tests."""

    def __init__(self):
        self._interpreters = {}

    def run(self, options, words, environment, folder, timeout, before=None, imports=(), whole_end=False):
        """`python OPTIONS -c PROGRAM ...` or `python OPTIONS FILE ...`, with its output. Variables `before` are there
        while torch and `imports` are imported. With `whole_end` the interpreter ends as any other does."""
        own = {key: value for key, value in environment.items() if key.startswith("GAPLESS_")}
        rest = {**{key: value for key, value in environment.items() if key not in own}, **(before or {})}
        key = json.dumps([options, rest, imports], sort_keys=True)
        interpreter = self._interpreters.pop(key, None)
        if interpreter is None or interpreter.process.poll() is not None:
            interpreter = Interpreter(options, rest, imports)
        self._interpreters[key] = interpreter
        while len(self._interpreters) > KEPT:
            self._interpreters.pop(next(iter(self._interpreters))).end()
        return interpreter.run(words, own, folder or os.getcwd(), timeout, whole_end)

    def end(self):
        while self._interpreters:
            self._interpreters.popitem()[1].end()


class Interpreter:
    def __init__(self, options, environment, imports):
        ours, theirs = socket.socketpair()
        program = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import warm; del sys.path[0]\n"
        program += f"job = warm.serve({theirs.fileno()}, {list(imports)})\n"
        # At the bottom of the stack, so that the program below it is all that a stack shows but for this one frame.
        program += "if job and job.whole_end: exec(job.code, job.space)\n"
        program += "elif job:\n"
        program += "    try: exec(job.code, job.space)\n"
        program += "    except BaseException as error: warm.end(job.space, error)\n"
        program += "    else: warm.end(job.space)\n"
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *options, "-c", program],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self._socket = ours
        self._answers = ours.makefile("r")

    def run(self, words, environment, folder, timeout, whole_end):
        out, err = os.pipe(), os.pipe()
        try:
            request = json.dumps({"words": words, "environment": environment, "folder": str(folder), "whole_end": whole_end}).encode()
            self._socket.sendall(len(request).to_bytes(4, "little"))
            self._socket.sendall(request)
            socket.send_fds(self._socket, [b"."], [out[1], err[1]])
        finally:
            os.close(out[1])
            os.close(err[1])
        texts = {}
        readers = [threading.Thread(target=_read, args=(texts, name, end[0])) for name, end in (("out", out), ("err", err))]
        for reader in readers:
            reader.start()
        pid = int(self._answers.readline())
        late = threading.Timer(timeout, os.kill, (pid, signal.SIGKILL))
        late.start()
        code = int(self._answers.readline())
        late.cancel()
        for reader in readers:
            reader.join()
        return subprocess.CompletedProcess(words, code, texts["out"], texts["err"])

    def end(self):
        self._socket.close()
        self._answers.close()
        self.process.wait()


def _read(texts, name, end):
    with open(end, encoding="utf-8", errors="replace") as file:
        texts[name] = file.read()


# ---- what runs in the interpreter ----


class Job:
    """A program that is about to run in this process."""

    def __init__(self, words, whole_end):
        self.whole_end = whole_end
        if words[0] == "-c":
            text, name, sys.argv = words[1], "<string>", ["-c", *words[2:]]
        else:
            name, sys.argv = words[0], list(words)
            sys.path[0] = os.path.dirname(os.path.abspath(name))
            with open(name, encoding="utf-8") as file:
                text = file.read()
        main = type(sys)("__main__")
        main.__builtins__ = __builtins__
        if name != "<string>":
            main.__file__ = name
        sys.modules["__main__"] = main
        self.space = main.__dict__
        self.code = compile(text, name, "exec")


def serve(handle, imports):
    """Forks for each request. Returns a Job in a child; None when the tests have closed the pipe."""
    import torch  # noqa: F401

    for name in imports:
        importlib.import_module(name)

    # A collection looks at what the program made, and copies no page of what torch made.
    gc.collect()
    gc.freeze()
    # Set in the process that forks, so that each program has it.
    sys.excepthook = _tell
    asked = socket.socket(fileno=handle)
    while True:
        size = _exactly(asked, 4)
        if not size:
            return None
        request = json.loads(_exactly(asked, int.from_bytes(size, "little")))
        _, (out, err), _, _ = socket.recv_fds(asked, 1, 2)
        pid = os.fork()
        if pid == 0:
            asked.close()
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.close(out)
            os.close(err)
            os.chdir(request["folder"])
            os.environ.update(request["environment"])
            for name in ("warm", "json.tool"):
                sys.modules.pop(name, None)
            return Job(request["words"], request["whole_end"])
        os.close(out)
        os.close(err)
        asked.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        asked.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def end(space, error=None):
    """Ends the program's process as Python would, but for what it clears at last."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    elif error is not None:
        code = 1
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()
    atexit._run_exitfuncs()
    # What the program still holds is freed while everything is there, as at a whole end.
    space.clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if isinstance(error, KeyboardInterrupt):
        # Python ends by the signal itself.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _exactly(asked, count):
    found = b""
    while len(found) < count:
        part = asked.recv(count - len(found))
        if not part:
            return b""
        found += part
    return found


def _tell(kind, error, trace):
    """A traceback without the frame below the program."""
    inner = trace.tb_next if trace is not None and trace.tb_next is not None else trace
    sys.__excepthook__(kind, error.with_traceback(inner), inner)
