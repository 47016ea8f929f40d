# SPDX-License-Identifier: Apache-2.0
"""The warm interpreter behind the connection plugin `hyperpod.lifecycle.warm`.

The node's Python reads it from standard input, as it does a pipelined module, so that a forked child has the
`sys.path`, `sys.argv` and standard streams of a module. It has one thread, because it forks. The syntax must work with
Python 3.8. Arguments: the listening socket, and a pidfd of ansible-playbook, with which this process ends.

Most of a module's time is spent on finding, compiling and importing 30 to 60 source files and the standard library.
This process does that once. Compiled code is cached by content, so a module only gets code that is in its own payload.
The modules that every module imports first (module_utils.basic) are imported once, from the first payload, and are not
used for a payload in which one of these files differs. Everything else runs in each child.
"""

from __future__ import annotations

import _imp
import atexit
import base64
import contextlib
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import pkgutil
import re
import select
import signal
import socket
import struct
import sys
import threading
import time
import types
import warnings
import zipfile
import zipimport
from collections.abc import Callable
from typing import Any

# Modules of the standard library that ansible.module_utils and common modules import.
STANDARD_LIBRARY = (
    "abc argparse array ast atexit bisect calendar codecs collections.abc configparser contextlib copy ctypes "
    "ctypes.util dataclasses datetime decimal difflib dis email.message email.parser email.utils enum errno fcntl "
    "filecmp fnmatch functools gettext getpass glob grp gzip hashlib heapq hmac html http.client http.cookiejar "
    "inspect ipaddress itertools keyword linecache locale logging mimetypes numbers opcode operator optparse "
    "pathlib pickle pkgutil platform pwd queue random resource runpy secrets selectors shlex shutil ssl stat string "
    "subprocess syslog tarfile tempfile textwrap threading token tokenize traceback typing unicodedata urllib.error "
    "urllib.parse urllib.request uuid weakref zlib"
)
BASIC = "ansible/module_utils/basic.py"
ALWAYS_IMPORTED = ("ansible.module_utils.basic", "ansible.module_utils._internal._ansiballz._loader")
fix_filename = _imp._fix_co_filename  # type: ignore[attr-defined]
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL for a module whose task has ended

# Only at the start of a line, because a module's parameters, which may contain this text, are one line.
_ZIP = re.compile(rb"""^ *(?:ZIPDATA = |zip_data=)(['"])([A-Za-z0-9+/=]+)\1,?$""", re.MULTILINE)


class Module:
    """One module run: its process, and the connection of the worker that waits for it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.pid = 0  # 0: not requested yet
        self.kill_at = 0.0  # 0: its worker still waits for it


class Request:
    """What a child runs."""

    def __init__(
        self, payload: bytes, codes: dict[str, types.CodeType], preloaded: Preloaded | None, details: dict[str, Any]
    ) -> None:
        self.payload = payload
        self.codes = codes
        self.preloaded = preloaded
        self.details = details


class CodeCache:
    """Compiled code of the Python files in payloads, by their path in the archive."""

    def __init__(self) -> None:
        self._by_archive: dict[bytes, dict[str, types.CodeType]] = {}
        self._by_source: dict[tuple[str, bytes], types.CodeType] = {}
        self._preloaded: Preloaded | None = None

    def request(self, payload: bytes, details: dict[str, Any]) -> Request:
        found = _ZIP.search(payload)
        if found is None or sys.version_info < (3, 10):  # an unknown wrapper; a zipimporter that has no get_code()
            return Request(payload, {}, None, details)
        archive = found.group(2)
        if archive not in self._by_archive:
            content = base64.b64decode(archive)
            self._by_archive[archive] = self._compile(content)
            if self._preloaded is None and BASIC in self._by_archive[archive]:
                self._preloaded = Preloaded(content, self._by_archive[archive])
            gc.collect()
            gc.freeze()  # children then leave these pages shared
        codes = self._by_archive[archive]
        preloaded = self._preloaded
        return Request(payload, codes, preloaded if preloaded and preloaded.fits(codes) else None, details)

    def _compile(self, archive: bytes) -> dict[str, types.CodeType]:
        codes = {}
        with zipfile.ZipFile(io.BytesIO(archive)) as files, warnings.catch_warnings():
            warnings.simplefilter("error")
            for name in files.namelist():
                if not name.endswith(".py"):
                    continue
                source = files.read(name)
                code = self._by_source.get((name, source))
                if code is None:
                    try:
                        code = compile(source, name, "exec", dont_inherit=True)
                    except (SyntaxError, ValueError, Warning):
                        continue  # the module's import compiles it again and reports the error
                    self._by_source[name, source] = code
                codes[name] = code
        return codes


class Preloaded:
    """Modules imported from the first payload, which children use as if they were from their own payload."""

    def __init__(self, archive: bytes, codes: dict[str, types.CodeType]) -> None:
        file = os.memfd_create("payload")
        os.write(file, archive)
        self.place = f"/proc/self/fd/{file}"
        finders = sys.meta_path[:]
        hook = payload_importer(self.place, codes)
        sys.path.insert(0, self.place)
        sys.path_hooks.insert(0, hook)
        for name in ALWAYS_IMPORTED:
            if name.replace(".", "/") + ".py" in codes:
                importlib.import_module(name)
        sys.path.remove(self.place)
        sys.path_hooks.remove(hook)
        sys.path_importer_cache.clear()
        os.close(file)
        self.finders = [finder for finder in sys.meta_path if finder not in finders]  # six brings one
        sys.meta_path[:] = finders
        self.modules = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "ansible"}
        self.codes = {}
        for module in self.modules.values():
            if self._is_ours(module):
                entry = vars(module)["__file__"][len(self.place) + 1 :]
                self.codes[entry] = codes[entry]

    def _is_ours(self, module: types.ModuleType) -> bool:
        """Return whether a module is from the payload; the aliases of six are not."""
        return str(vars(module).get("__file__")).startswith(self.place)

    def fits(self, codes: dict[str, types.CodeType]) -> bool:
        return all(codes.get(entry) is code for entry, code in self.codes.items())

    def take_over(self, archive: str) -> None:
        """Replace the path of the first payload by `archive` in all attributes of the modules."""

        def moved(path: str) -> str:
            return archive + path[len(self.place) :] if path.startswith(self.place) else path

        for entry, code in self.codes.items():
            fix_filename(code, archive + "/" + entry)
        for name, module in self.modules.items():
            if not self._is_ours(module):
                continue
            names = vars(module)
            for key, value in list(names.items()):
                if isinstance(value, str):
                    names[key] = moved(value)
                elif isinstance(value, pathlib.PurePath):
                    names[key] = type(value)(moved(str(value)))
            folder, base = os.path.split(names["__file__"])
            if base == "__init__.py":
                folder = os.path.dirname(folder)
                names["__path__"] = [moved(path) for path in names["__path__"]]
            names["__loader__"] = pkgutil.get_importer(folder)
            names["__spec__"] = importlib.util.spec_from_file_location(
                name, names["__file__"], loader=names["__loader__"], submodule_search_locations=names.get("__path__")
            )
        sys.modules.update(self.modules)
        sys.meta_path.extend(self.finders)


class PayloadFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Handles the wrapper's first import from the archive that it has put on sys.path."""

    def __init__(self, codes: dict[str, types.CodeType], preloaded: Preloaded | None) -> None:
        self.codes = codes
        self.preloaded = preloaded

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != "ansible":
            return None
        sys.meta_path.remove(self)
        archive = sys.path[0]
        sys.path_hooks.insert(0, payload_importer(archive, self.codes))
        if self.preloaded is None:
            return None
        self.preloaded.take_over(archive)
        self.spec = self.preloaded.modules[fullname].__spec__
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: Any) -> types.ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self.spec


def payload_importer(archive: str, codes: dict[str, types.CodeType]) -> type[zipimport.zipimporter]:
    """Return a zipimporter for one archive that uses compiled code."""

    class PayloadImporter(zipimport.zipimporter):
        def __init__(self, path: str) -> None:
            if path != archive and not path.startswith(archive + "/"):
                raise zipimport.ZipImportError("not the payload", path=path)
            super().__init__(path)

        def _entry(self, fullname: str) -> str:
            stem = self.prefix + fullname.rpartition(".")[2]
            package = stem + "/__init__.py"
            return package if package in codes else stem + ".py"

        def get_filename(self, fullname: str) -> str:
            entry = self._entry(fullname)
            return self.archive + "/" + entry if entry in codes else super().get_filename(fullname)

        def get_code(self, fullname: str) -> types.CodeType:
            entry = self._entry(fullname)
            if entry not in codes:
                return super().get_code(fullname)
            # Tracebacks show it, and ansible identifies the calling plugin by it.
            fix_filename(codes[entry], self.archive + "/" + entry)
            return codes[entry]

    return PayloadImporter


def abandon(module: Module) -> None:
    module.kill_at = time.monotonic() + GRACE_SECONDS
    signal_module(module, signal.SIGTERM)


def signal_module(module: Module, number: int) -> None:
    """Signal the module's process group. Its leader was not reaped, so its process id was not reused."""
    try:
        os.killpg(module.pid, number)
    except ProcessLookupError:  # forked, but not yet the leader of its group
        os.kill(module.pid, number)


def serve(listener: socket.socket, run_pidfd: int) -> Request:
    """Fork a child for each request, and return the request in the child. The parent exits when the run ends."""
    cache = CodeCache()
    modules: dict[int, Module] = {}
    waker, wakes = socket.socketpair()
    waker.setblocking(False)
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    poll = select.poll()
    for descriptor in (listener.fileno(), run_pidfd, waker.fileno()):
        poll.register(descriptor, select.POLLIN)

    def forget(module: Module) -> None:
        descriptor = module.connection.fileno()
        poll.unregister(descriptor)
        del modules[descriptor]
        module.connection.close()

    run_over = False
    while not (run_over and not modules):
        deadlines = [module.kill_at for module in modules.values() if module.kill_at]
        wait = max(0.0, min(deadlines) - time.monotonic()) * 1000 if deadlines else None
        for descriptor, _events in poll.poll(wait):
            if descriptor == waker.fileno():
                waker.recv(4096)
            elif descriptor == run_pidfd:
                run_over = True
                poll.unregister(run_pidfd)
                poll.unregister(listener.fileno())
                for module in list(modules.values()):
                    if not module.pid:
                        forget(module)
                    elif not module.kill_at:
                        abandon(module)
            elif descriptor == listener.fileno():
                connection = listener.accept()[0]
                modules[connection.fileno()] = Module(connection)
                poll.register(connection.fileno(), select.POLLIN)
            elif descriptor in modules:
                module = modules[descriptor]
                if module.pid:  # workers send nothing after their request: the connection was closed
                    poll.modify(descriptor, 0)
                    if not module.kill_at:
                        abandon(module)
                    continue
                descriptors = receive_descriptors(module.connection)
                if not descriptors:
                    forget(module)
                    continue
                request = read_request(descriptors[0], cache)
                module.pid = os.fork()
                if not module.pid:
                    begin(module.connection, request, *descriptors[1:])
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for other in modules.values():
                        other.connection.close()
                    for end in (listener, waker, wakes):
                        end.close()
                    os.close(run_pidfd)
                    return request
                for inherited in descriptors[1:]:
                    os.close(inherited)
        for module in list(modules.values()):
            reap(module, forget)
    sys.exit(0)


def reap(module: Module, forget: Callable[[Module], None]) -> None:
    """Send the status of a module that has ended, or kill the process group of an abandoned one after the grace."""
    if not module.pid:
        return
    if module.kill_at:
        if time.monotonic() < module.kill_at:
            return
        signal_module(module, signal.SIGKILL)
        os.waitpid(module.pid, 0)
        forget(module)
        return
    pid, status = os.waitpid(module.pid, os.WNOHANG)
    if pid:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the worker has ended
            module.connection.sendall(struct.pack("=i", status))
        forget(module)


def receive_descriptors(connection: socket.socket) -> list[int]:
    """Return the descriptors of request, output and errors, or none if the worker has ended."""
    ancillary = connection.recvmsg(1, socket.CMSG_SPACE(3 * 4))[1]
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            return list(struct.unpack("=3i", content))
    return []


def read_request(descriptor: int, cache: CodeCache) -> Request:
    """Read a request: a line of JSON, then the module as Ansible wraps it."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        details = json.loads(file.readline())
        payload = file.read()
    return cache.request(payload, details)


def begin(connection: socket.socket, request: Request, stdout: int, stderr: int) -> None:
    """Set up the process for the module. A failure before the final byte is sent means that the module was not run."""
    os.setsid()
    stdin, write_end = os.pipe()
    os.close(write_end)
    for source, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    os.chdir(request.details["cwd"])
    os.umask(request.details["umask"])
    environment = request.details["environment"]
    if "LC_CTYPE" in os.environ:  # set by Python when it starts in the C locale (PEP 538)
        environment.setdefault("LC_CTYPE", os.environ["LC_CTYPE"])
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    connection.sendall(b"S")


def run(request: Request) -> None:
    """Run the wrapper like `python3 < wrapper`."""
    if request.codes:
        sys.meta_path.insert(0, PayloadFinder(request.codes, request.preloaded))
    importlib.invalidate_caches()
    sys.argv = [""]
    status: object = None
    try:
        failure = execute(compile(request.payload, "<stdin>", "exec", dont_inherit=True))
        if failure is not None:
            trace = failure.__traceback__ and failure.__traceback__.tb_next  # without the frame of execute()
            # Modules may have set it. As in the interpreter, it is called outside of the exception handler.
            sys.excepthook(type(failure), failure.with_traceback(trace), trace)
            failure = trace = None  # frees the objects in its frames
            status = 1
    except SystemExit as leave:
        status = leave.code
    leave_now(status)


def execute(code: types.CodeType) -> Exception | None:
    try:
        exec(code, MAIN.__dict__)  # noqa: S102
    except Exception as failure:
        return failure
    return None


def leave_now(status: object) -> None:
    """Exit like Python, but without deallocating 400 modules, which takes longer than most Ansible modules."""
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    MAIN.__dict__.clear()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((status or 0) & 0xFF)


def prepare() -> Request:
    for name in STANDARD_LIBRARY.split():
        importlib.import_module(name)
    listener = socket.socket(fileno=int(sys.argv[1]))
    return serve(listener, int(sys.argv[2]))


# The module's __main__, without the names of this program.
OWN, MAIN = sys.modules["__main__"], types.ModuleType("__main__")
MAIN.__dict__.update(__builtins__=__builtins__, __annotations__={})
sys.modules["__main__"] = MAIN
run(prepare())
