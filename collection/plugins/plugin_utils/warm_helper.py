# SPDX-License-Identifier: Apache-2.0
"""The warm interpreter behind the connection plugin `hyperpod.lifecycle.warm`.

Fed to the node's own Python on standard input, as a pipelined module is, so that a forked child sees the `sys.path`,
`sys.argv` and standard streams a module sees. It stays one thread: it forks. The node's Python may be old (3.7): keep
the syntax plain. Arguments: the listening socket, and a pidfd of the ansible-playbook that this process dies with.

What a module costs is finding and compiling its 30 to 60 source files, and importing the standard library. Both are
done here once: code is compiled when a payload with it first arrives and kept by content, so a module can only ever
get the code that came in its own payload. Module bodies run anew in each child, so no state can leak between modules.
"""

from __future__ import annotations

import base64
import gc
import importlib
import io
import json
import os
import re
import select
import signal
import socket
import struct
import sys
import time
import types
import warnings
import zipfile
import zipimport

# What ansible.module_utils and the common modules import from the standard library.
STANDARD_LIBRARY = (
    "abc argparse array ast atexit bisect calendar codecs collections.abc configparser contextlib copy ctypes ctypes.util "
    "dataclasses datetime decimal difflib dis email.message email.parser email.utils enum errno fcntl filecmp fnmatch "
    "functools gettext getpass glob grp gzip hashlib heapq hmac html http.client http.cookiejar inspect ipaddress "
    "itertools keyword linecache locale logging mimetypes numbers opcode operator optparse pathlib pickle pkgutil "
    "platform pwd queue random resource runpy secrets selectors shlex shutil ssl stat string subprocess syslog tarfile "
    "tempfile textwrap threading token tokenize traceback typing unicodedata urllib.error urllib.parse urllib.request "
    "uuid weakref zlib"
)
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL for a module whose task is gone

_ZIP = re.compile(rb"""(?:ZIPDATA = |zip_data=)(['"])([A-Za-z0-9+/=]+)\1""")
_PAYLOAD_NAME = re.compile(r"/ansible_[^/]+_payload\.zip$")


class Module:
    """One module run: its process, and the connection of the worker that waits for it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.pid = 0  # 0: not asked for yet
        self.kill_at = 0.0  # not 0: abandoned


class Request:
    """What a child runs."""

    def __init__(self, payload: bytes, codes: dict[str, types.CodeType], details: dict[str, object]) -> None:
        self.payload = payload
        self.codes = codes
        self.details = details


class CodeCache:
    """Compiled code of the Python files in payloads."""

    def __init__(self) -> None:
        self._by_archive: dict[bytes, dict[str, types.CodeType]] = {}
        self._by_source: dict[tuple[str, bytes], types.CodeType] = {}

    def codes(self, payload: bytes) -> dict[str, types.CodeType]:
        found = _ZIP.search(payload)
        if found is None:  # a form of wrapper this does not know: it imports as it always did
            return {}
        archive = found.group(2)
        if archive not in self._by_archive:
            self._by_archive[archive] = self._compile(base64.b64decode(archive))
        return self._by_archive[archive]

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
                        continue  # the module's own import compiles it again, and says so where the module is read
                    self._by_source[name, source] = code
                codes[name] = code
        return codes


def payload_importer(codes: dict[str, types.CodeType]) -> type[zipimport.zipimporter]:
    """zipimport for this module's payload, with the compiling left out."""

    class PayloadImporter(zipimport.zipimporter):
        def __init__(self, path: str) -> None:
            super().__init__(path)
            if not _PAYLOAD_NAME.search(self.archive):
                raise zipimport.ZipImportError("not a payload", path=path)

        def _entry(self, fullname: str) -> str:
            stem = self.prefix.replace(os.sep, "/") + fullname.rpartition(".")[2]
            package = stem + "/__init__.py"
            return package if package in codes else stem + ".py"

        def get_filename(self, fullname: str) -> str:
            entry = self._entry(fullname)
            return self.archive + "/" + entry if entry in codes else super().get_filename(fullname)

        def get_code(self, fullname: str) -> types.CodeType:
            entry = self._entry(fullname)
            if entry not in codes:
                return super().get_code(fullname)
            return located(codes[entry], self.archive + "/" + entry)

    return PayloadImporter


def located(code: types.CodeType, filename: str) -> types.CodeType:
    """The code as if compiled from filename: tracebacks and ansible's search for a caller's plugin read it."""
    constants = tuple(located(item, filename) if isinstance(item, types.CodeType) else item for item in code.co_consts)
    return code.replace(co_filename=filename, co_consts=constants)


def abandon(module: Module) -> None:
    module.kill_at = time.monotonic() + GRACE_SECONDS
    signal_module(module, signal.SIGTERM)


def signal_module(module: Module, number: int) -> None:
    """Signal the module's process group. Its leader is not reaped yet, so the numbers are still its own."""
    try:
        os.killpg(module.pid, number)
    except ProcessLookupError:  # forked, but not yet the leader of its group
        os.kill(module.pid, number)


def serve(listener: socket.socket, run_pidfd: int) -> Request:
    """Fork a child for each request. Returns in the children only; the parent ends with the run."""
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
                connection, _ = listener.accept()
                modules[connection.fileno()] = Module(connection)
                poll.register(connection.fileno(), select.POLLIN)
            elif descriptor in modules:
                module = modules[descriptor]
                if module.pid:  # a worker says nothing after its request: this is its end
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


def reap(module: Module, forget: object) -> None:
    """Report a module that ended. An abandoned one keeps its group's number until what is left of the group is killed."""
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
        try:
            module.connection.sendall(struct.pack("=i", status))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the worker is gone: nobody to tell
        forget(module)


def receive_descriptors(connection: socket.socket) -> list[int]:
    """[request, stdout, stderr]; empty when the worker went away."""
    _data, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(3 * 4))
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            return list(struct.unpack("=3i", content))
    return []


def read_request(descriptor: int, cache: CodeCache) -> Request:
    """A line of JSON, then the module as ansible wraps it."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        details = json.loads(file.readline())
        payload = file.read()
    return Request(payload, cache.codes(payload), details)


def begin(connection: socket.socket, request: Request, stdout: int, stderr: int) -> None:
    """Become the process a module expects. Up to the byte sent last, failing means that the module has not run."""
    os.setsid()
    stdin, write_end = os.pipe()
    os.close(write_end)
    for source, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    os.chdir(request.details["cwd"])
    os.umask(request.details["umask"])
    environment = request.details["environment"]
    if "LC_CTYPE" in os.environ:  # Python's own doing at start in the C locale (PEP 538)
        environment.setdefault("LC_CTYPE", os.environ["LC_CTYPE"])
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    connection.sendall(b"S")


def run(request: Request) -> None:
    """Run the wrapper as `python3 < wrapper` does."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __annotations__={})
    sys.modules["__main__"] = main
    sys.argv = [""]
    if request.codes and sys.version_info >= (3, 10):  # older zipimporters do not ask get_code()
        sys.path_hooks.insert(0, payload_importer(request.codes))
    importlib.invalidate_caches()
    code = compile(request.payload, "<stdin>", "exec", dont_inherit=True)
    try:
        exec(code, main.__dict__)  # noqa: S102
    except Exception:
        kind, error, trace = sys.exc_info()
        sys.excepthook(kind, error, trace.tb_next)  # without this frame
        sys.exit(1)


def prepare() -> Request:
    for name in STANDARD_LIBRARY.split():
        importlib.import_module(name)
    listener = socket.socket(fileno=int(sys.argv[1]))
    gc.collect()
    gc.freeze()  # children then leave these pages shared
    return serve(listener, int(sys.argv[2]))


run(prepare())
