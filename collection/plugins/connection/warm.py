# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible's local connection with one warm interpreter per run.

The first worker that runs a module creates a socket in the run's temporary directory (mode 0700) and starts the node's
interpreter with `plugin_utils/warm_helper.py` on it. All workers of the run send their modules to that process, which
forks for each module. Workers cannot own the helper, because each is forked for one task and has its own session, and
the main process never loads this plugin. The helper therefore holds a pidfd of ansible-playbook and ends with it.
"""

from __future__ import annotations

DOCUMENTATION = """
name: warm
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
short_description: Run modules on this machine in one warm interpreter
description:
  - Like C(ansible.builtin.local), but Python modules run in forks of one process per run that has already compiled
    and imported their dependencies.
  - Everything except plain Python modules of the current user (raw, become, async, binary and old-style modules, kept
    remote files) runs as with C(ansible.builtin.local).
notes:
  - Unlike with C(ansible.builtin.local), a module whose task timed out is terminated.
  - Linux only. If the helper cannot be started, modules run as with C(ansible.builtin.local), and C(-vvv) shows why.
options:
  pipelining:
    description: Modules reach the warm interpreter only by pipelining. V(false) makes this C(ansible.builtin.local).
    type: boolean
    default: true
    vars:
      - name: ansible_pipelining
  become_success_timeout:
    description: As for C(ansible.builtin.local).
    type: int
    default: 10
    vars:
      - name: ansible_local_become_success_timeout
  become_strip_preamble:
    description: As for C(ansible.builtin.local).
    type: bool
    default: true
    vars:
      - name: ansible_local_become_strip_preamble
"""

import contextlib
import hashlib
import json
import os
import re
import selectors
import shlex
import signal
import socket
import struct
import subprocess
from pathlib import Path

from ansible import constants
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase
from ansible.plugins.connection.local import Connection as LocalConnection
from ansible.utils.display import Display

display = Display()

HELPER = Path(__file__).resolve().parents[1] / "plugin_utils" / "warm_helper.py"
SHELL_SUFFIX = " && sleep 0"  # ansible-core before 2.21 ends every command with it
# Variables that an interpreter reads when it starts; a task with other values gets its own helper.
START_VARIABLES = re.compile(r"(PYTHON|LC_|LD_|MALLOC_|OPENSSL_).*|LANG|HOME|GLIBC_TUNABLES")
INTERPRETER = re.compile(r"/[\w./+-]+")


class ModuleCommand:
    """The parts of the command ``/bin/sh -c '[NAME=VALUE …] INTERPRETER'``."""

    def __init__(self, assignments: dict[str, str], interpreter: str) -> None:
        self.assignments = assignments
        self.interpreter = interpreter

    @classmethod
    def parse(cls, command: str) -> ModuleCommand | None:
        """Return the parts of a command of this form, or None."""
        shell, _option, quoted = command.partition(" -c ")
        words = shlex.split(quoted) if shell == "/bin/sh" else []
        if len(words) != 1:
            return None
        inner = words[0].removesuffix(SHELL_SUFFIX)
        *settings, interpreter = shlex.split(inner) or [""]
        assignments = dict(setting.partition("=")[::2] for setting in settings)
        # If the same text results, it contains nothing that a shell would expand.
        again = "".join(f"{name}={shlex.quote(value)} " for name, value in assignments.items()) + interpreter
        if again != inner or not INTERPRETER.fullmatch(interpreter) or not all(map(str.isidentifier, assignments)):
            return None
        return cls(assignments, interpreter)


class NotStarted(Exception):
    """The module was not run; the message has the reason."""


class Connection(LocalConnection):
    """The local connection, with modules run by a warm interpreter."""

    # `transport` stays "local": ansible-core sets our working directory, and reboot refuses to run, by that name.

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        module = ModuleCommand.parse(cmd) if in_data and b"_ANSIBALLZ_WRAPPER = True" in in_data[:1000] else None
        if module is None or in_data is None:
            return super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        ConnectionBase.exec_command(self, cmd, in_data=in_data, sudoable=sudoable)  # connects
        host = self._play_context.remote_addr
        try:
            with contextlib.ExitStack() as stack:
                helper, stdout, stderr = self._start_module(module, in_data, stack)
                display.vvv(f"EXEC (warm) {cmd}", host=host)
                return self._finish_module(helper, stdout, stderr)
        except NotStarted as error:
            display.vvv(f"NOT WARM, run as the local connection does: {error}", host=host)
        return super().exec_command(cmd, in_data=in_data, sudoable=sudoable)

    def _start_module(
        self, module: ModuleCommand, payload: bytes, stack: contextlib.ExitStack
    ) -> tuple[socket.socket, int, int]:
        """Send the module to the helper. Return its connection and the module's output and error pipes.

        `stack` closes them, which also terminates a module that is still running. Raises NotStarted.
        """
        cwd = os.path.abspath(os.fsdecode(self.cwd or "."))
        environment = {**os.environ, **_shell_pwd(cwd), **module.assignments}
        umask = os.umask(0o077)
        os.umask(umask)
        details = {"environment": environment, "cwd": cwd, "umask": umask}
        name = _helper_name(module.interpreter, environment)
        try:
            helper = stack.enter_context(self._helper(name, module.interpreter, environment))
            request = stack.enter_context(os.fdopen(os.memfd_create("warm-module"), "wb"))
            request.write(json.dumps(details).encode() + b"\n" + payload)
            request.flush()
            (stdout, stdout_end), (stderr, stderr_end) = os.pipe(), os.pipe()
            for descriptor in (stdout, stderr):
                stack.callback(os.close, descriptor)
            try:
                socket.send_fds(helper, [b"R"], [request.fileno(), stdout_end, stderr_end])
            finally:
                os.close(stdout_end)
                os.close(stderr_end)
            started = helper.recv(1) == b"S"
        except OSError as error:
            raise NotStarted(f"no helper for {module.interpreter}: {error}. {_last_words(name)}") from error
        if not started:
            raise NotStarted(f"the helper for {module.interpreter} ended before the module began. {_last_words(name)}")
        return helper, stdout, stderr

    def _finish_module(self, helper: socket.socket, stdout: int, stderr: int) -> tuple[int, bytes, bytes]:
        """Return exit status, output and errors of the module, after all of its child processes closed the pipes."""
        output: dict[int, list[bytes]] = {stdout: [], stderr: []}
        with selectors.DefaultSelector() as selector:
            for descriptor in output:
                selector.register(descriptor, selectors.EVENT_READ)
            while selector.get_map():
                for key, _events in selector.select():
                    data = os.read(key.fd, 1 << 20)
                    if data:
                        output[key.fd].append(data)
                    else:
                        selector.unregister(key.fd)
        try:
            status = helper.recv(4, socket.MSG_WAITALL)
        except ConnectionResetError:
            status = b""
        if len(status) != 4:
            raise AnsibleConnectionFailure(
                "the warm interpreter ended while a module ran; the module may have finished"
            )
        code = os.waitstatus_to_exitcode(struct.unpack("=i", status)[0])
        if code < 0:  # report a signal as a shell would
            if -code not in (signal.SIGINT, signal.SIGPIPE):
                output[stderr].append(f"{signal.strsignal(-code)}\n".encode())
            code = 128 - code
        return code, b"".join(output[stdout]), b"".join(output[stderr])

    def _helper(self, name: str, interpreter: str, environment: dict[str, str]) -> socket.socket:
        """Return a connection to the helper of this name, which is started if there is none."""
        client = socket.socket(socket.AF_UNIX)
        folder = os.open(constants.DEFAULT_LOCAL_TMP, os.O_PATH | os.O_DIRECTORY)
        try:
            address = f"/proc/self/fd/{folder}/{name}"  # the path of the directory may be too long for a socket
            if not os.path.lexists(address):
                self._start_helper(interpreter, environment, address)
            client.connect(address)
        except BaseException:
            client.close()
            raise
        finally:
            os.close(folder)
        return client

    def _start_helper(self, interpreter: str, environment: dict[str, str], address: str) -> None:
        """Create a listening socket at `address` and start the helper with it, unless another worker has done so.

        Workers can connect before the helper accepts. If the helper dies, the socket closes and they fall back to the
        local connection.
        """
        main = os.getppid()
        with contextlib.ExitStack() as stack:
            run = os.pidfd_open(main)
            stack.callback(os.close, run)
            if os.getppid() != main:
                raise ProcessLookupError("ansible-playbook has ended")
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            own = f"{address}.{os.getpid()}"
            umask = os.umask(0o077)
            try:
                listener.bind(own)
            finally:
                os.umask(umask)
            listener.listen(128)
            try:
                os.link(own, address)
            except FileExistsError:
                return
            finally:
                os.unlink(own)
            self._make_remote_tmp()
            source = stack.enter_context(HELPER.open("rb"))
            log = stack.enter_context(open(f"{address}.log", "wb"))
            subprocess.Popen(
                [interpreter, "-", str(listener.fileno()), str(run)],
                stdin=source,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
                env=environment,
                pass_fds=(listener.fileno(), run),
                start_new_session=True,
            )

    def _make_remote_tmp(self) -> None:
        """Create the remote temporary directory like the local connection; modules that create it print a warning."""
        path = os.path.expanduser(os.path.expandvars(self._shell.get_option("remote_tmp")))
        with contextlib.suppress(OSError):  # the module then reports it
            os.makedirs(path, mode=0o700, exist_ok=True)


def _helper_name(interpreter: str, environment: dict[str, str]) -> str:
    start = {name: value for name, value in environment.items() if START_VARIABLES.fullmatch(name)}
    return "warm-" + hashlib.sha256(json.dumps([interpreter, start], sort_keys=True).encode()).hexdigest()[:16]


def _last_words(name: str) -> str:
    """Return the last line of the helper's error output, which is in the run's temporary directory."""
    log = Path(constants.DEFAULT_LOCAL_TMP, f"{name}.log")
    return log.read_text(errors="replace").strip().rpartition("\n")[2] if log.exists() else ""


def _shell_pwd(cwd: str) -> dict[str, str]:
    """Return PWD as a shell that starts the module would set it."""
    given = os.environ.get("PWD", "")
    right = given.startswith("/") and os.path.exists(given) and os.path.samefile(given, cwd)
    return {"PWD": given if right else os.path.realpath(cwd)}
