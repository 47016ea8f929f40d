# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible's local connection with one warm interpreter per run.

The first worker that runs a module makes a socket in the run's own temporary folder (0700) and starts the node's
interpreter on `plugin_utils/warm_helper.py` behind it; every worker of the run then hands its modules to that process,
which forks for each. Why so: a connection object lives in a worker, which is forked for one task and has a session of
its own, so neither the object nor the worker can own the helper; and the main process never loads this plugin. The
helper therefore holds a pidfd of ansible-playbook and ends when that ends, however it ends.
"""

from __future__ import annotations

DOCUMENTATION = """
name: warm
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
short_description: Run modules on this machine in one warm interpreter
description:
  - C(ansible.builtin.local), but Python modules run in forks of one process per run that has compiled and imported
    what they need.
  - Everything that is not a plain Python module run by the current user (raw, become, async, binary and old-style
    modules, kept remote files) runs as C(ansible.builtin.local) runs it.
notes:
  - Unlike with C(ansible.builtin.local), a module whose task timed out is stopped, not left to run on.
  - Linux only. Where the helper cannot be started, modules run as C(ansible.builtin.local) runs them; C(-vvv) says why.
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
# An interpreter reads these at its start; a task that sets one differently gets another helper.
START_VARIABLES = re.compile(r"(PYTHON|LC_|LD_|MALLOC_|OPENSSL_).*|LANG|HOME|GLIBC_TUNABLES")
INTERPRETER = re.compile(r"/[\w./+-]+")


class ModuleCommand:
    """`/bin/sh -c '[NAME=VALUE …] INTERPRETER'`, taken apart; None for anything else."""

    def __init__(self, assignments: dict[str, str], interpreter: str) -> None:
        self.assignments = assignments
        self.interpreter = interpreter

    @classmethod
    def parse(cls, command: str) -> ModuleCommand | None:
        shell, _option, quoted = command.partition(" -c ")
        words = shlex.split(quoted) if shell == "/bin/sh" else []
        if len(words) != 1:
            return None
        inner = words[0].removesuffix(SHELL_SUFFIX)
        *settings, interpreter = shlex.split(inner) or [""]
        assignments = dict(setting.partition("=")[::2] for setting in settings)
        # Written again it must be the same text: then the shell has nothing to expand in it.
        again = "".join(f"{name}={shlex.quote(value)} " for name, value in assignments.items()) + interpreter
        if again != inner or not INTERPRETER.fullmatch(interpreter) or not all(map(str.isidentifier, assignments)):
            return None
        return cls(assignments, interpreter)


class NotStarted(Exception):
    """The module has not run, and why."""


class Connection(LocalConnection):
    """The local connection, modules run by a warm interpreter."""

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
        """Hand the module over; what is returned closes with the stack, which also ends a module still running."""
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
        """Read until both streams end, whoever in the module's offspring holds them, then the exit status."""
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
        if code < 0:  # what the shell that would be between makes of a signal
            if -code not in (signal.SIGINT, signal.SIGPIPE):
                output[stderr].append(f"{signal.strsignal(-code)}\n".encode())
            code = 128 - code
        return code, b"".join(output[stdout]), b"".join(output[stderr])

    def _helper(self, name: str, interpreter: str, environment: dict[str, str]) -> socket.socket:
        """A connection to the helper of this name, which the first to ask starts."""
        client = socket.socket(socket.AF_UNIX)
        folder = os.open(constants.DEFAULT_LOCAL_TMP, os.O_PATH | os.O_DIRECTORY)
        try:
            address = f"/proc/self/fd/{folder}/{name}"  # the folder's own path may be too long for a socket
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
        """Publish a listening socket, unless another worker was faster, and start the helper on it.

        Workers can connect at once: they wait in its queue. A helper that dies closes it, so they fall back.
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
        """The local connection makes this folder with its first module; a module that has to make it warns."""
        path = os.path.expanduser(os.path.expandvars(self._shell.get_option("remote_tmp")))
        with contextlib.suppress(OSError):  # then the module says so
            os.makedirs(path, mode=0o700, exist_ok=True)


def _helper_name(interpreter: str, environment: dict[str, str]) -> str:
    start = {name: value for name, value in environment.items() if START_VARIABLES.fullmatch(name)}
    return "warm-" + hashlib.sha256(json.dumps([interpreter, start], sort_keys=True).encode()).hexdigest()[:16]


def _last_words(name: str) -> str:
    """What the helper's error output ends with; it goes with the run's temporary folder."""
    log = Path(constants.DEFAULT_LOCAL_TMP, f"{name}.log")
    return log.read_text(errors="replace").strip().rpartition("\n")[2] if log.exists() else ""


def _shell_pwd(cwd: str) -> dict[str, str]:
    """PWD as the shell that would have started the module sets it."""
    given = os.environ.get("PWD", "")
    right = given.startswith("/") and os.path.exists(given) and os.path.samefile(given, cwd)
    return {"PWD": given if right else os.path.realpath(cwd)}
