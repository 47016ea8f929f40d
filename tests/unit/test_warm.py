# SPDX-License-Identifier: Apache-2.0
"""The warm connection does what `local` does: one scenario under both, and what only the warm one can get wrong."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import packed_in
from polling import wait_for

ROOT = Path(__file__).resolve().parents[2]
ANSIBLE_PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
NODE_PYTHON = "/usr/bin/python3"
WARM = "hyperpod.lifecycle.warm"

RECORDER = """
import json, os
from ansible.plugins.callback import CallbackBase

class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "recorder"

    def _record(self, kind, result):
        new = hasattr(result, "result")
        task, host, data = (result.task, result.host, result.result) if new else (
            result._task, result._host, result._result)
        with open(os.environ["RECORD"], "a") as record:
            record.write(json.dumps([host.get_name(), task.get_name(), kind, data], default=str) + "\\n")

    def v2_runner_on_ok(self, result):
        self._record("ok", result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._record("failed", result)

    def v2_runner_on_unreachable(self, result):
        self._record("unreachable", result)
"""

# What a module can see of the process it runs in.
LOOK = """
import locale, os, signal, stat, sys, threading
from ansible.module_utils import basic
from ansible_collections.test.probe.plugins.module_utils import own
from ansible.module_utils.common import locale as common_locale

def place(path):
    return path.partition("_payload.zip")[2] or path

def kind(descriptor):
    mode = os.fstat(descriptor).st_mode
    return next(name for name in ("S_ISFIFO", "S_ISREG", "S_ISSOCK", "S_ISCHR", "S_ISDIR") if getattr(stat, name)(mode))

descriptors = {}
for number in range(256):
    try:
        descriptors[str(number)] = kind(number)
    except OSError:
        pass
seen = dict(
    argv=[place(word) for word in sys.argv], path=[place(entry) for entry in sys.path], cwd=os.getcwd(),
    environment={name: value for name, value in os.environ.items() if name not in ("_", "OLDPWD")},
    descriptors=descriptors, stdin=sys.stdin.read(), encodings=[sys.stdout.encoding, sys.stdout.errors,
    sys.stdin.encoding, sys.stderr.encoding, sys.getfilesystemencoding(), locale.getpreferredencoding()],
    flags=str(sys.flags), executable=sys.executable, python=sys.version, prefix=sys.prefix,
    signals=[str(signal.getsignal(number)) for number in range(1, signal.SIGSYS + 1)],
    mask=str(signal.pthread_sigmask(signal.SIG_BLOCK, [])), threads=[thread.name for thread in threading.enumerate()],
    ansible=sorted(place(str(module.__file__)) for name, module in sys.modules.items()
                   if name.startswith("ansible") and getattr(module, "__file__", None)),
    specs=sorted([name, place(str(module.__spec__.origin)), type(module.__spec__.loader).__mro__[-3].__name__]
                 for name, module in sys.modules.items()
                 if name.startswith("ansible.module_utils.common") and getattr(module, "__spec__", None)),
    code=place(basic.AnsibleModule.exit_json.__code__.co_filename), main=__name__, file=place(__file__),
    own=own.WHO, overridden=getattr(common_locale, "WHO", "core"), excepthook=repr(sys.excepthook)[:25],
    same_main=hasattr(sys.modules["__main__"], "LEAK"), argv_limit=len(sys.path),
)
LEAK = True
sys.modules["__main__"].LEAK = True
basic.LEAK = True

def main():
    umask = os.umask(0)
    os.umask(umask)
    module = basic.AnsibleModule(argument_spec=dict(mode=dict(default="look")), supports_check_mode=True)
    module.warn("a warning of the module")
    module.deprecate("a deprecation of the module", version="9.0.0", collection_name="test.probe")
    module.exit_json(changed=False, seen=seen, umask=umask, tmpdir=os.path.isdir(module.tmpdir),
                     check=module.check_mode, diff=dict(before="a\\n", after="b\\n"))

if __name__ == "__main__":
    main()
"""

# Ways to end that are not exit_json.
END = """
import atexit, os, signal, sys, tempfile, threading, time
from ansible.module_utils.basic import AnsibleModule

def main():
    module = AnsibleModule(argument_spec=dict(how=dict(), folder=dict()))
    how = module.params["how"]
    kept = tempfile.NamedTemporaryFile(dir=module.params["folder"], prefix="kept")
    if how == "junk":
        print("junk before")
        sys.stderr.write("on standard error\\n")
        sys.stdout.flush()
        os.write(1, b"more \\xff junk\\n")
    elif how == "big":
        module.exit_json(big="\\u00e9x" * (1 << 19))
    elif how == "raise":
        raise RuntimeError("raised")
    elif how == "text":
        sys.exit("only text")
    elif how == "silent":
        sys.exit(7)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "thread":
        work = lambda: (time.sleep(0.5), open(module.params["folder"] + "/thread", "w").close())
        threading.Thread(target=work).start()
    elif how == "return":
        return
    atexit.register(lambda: open(module.params["folder"] + "/atexit", "w").close())
    module.exit_json(changed=True, how=how)

if __name__ == "__main__":
    main()
"""

SCENARIO = """
- hosts: all
  gather_facts: false
  ignore_errors: true
  vars:
    unicode: "grüße ☃ {{ '\\U0001F40D' }}"
  tasks:
    - {name: facts, ansible.builtin.setup: {gather_subset: ["!all", "python", "user"]}}
    - {name: command, ansible.builtin.command: "echo {{ unicode }}"}
    - {name: command stdin, ansible.builtin.command: {cmd: cat, stdin: "{{ unicode }}"}}
    - {name: command no stdin, ansible.builtin.command: cat}
    - {name: shell, ansible.builtin.shell: "ulimit -n; umask; pwd; ls -l /proc/self/fd | wc -l; exit 3"}
    - {name: chdir, ansible.builtin.command: {cmd: pwd, chdir: /usr}}
    - name: environment
      ansible.builtin.shell: env | sort
      environment:
        GREETING: "{{ unicode }}"
        QUOTED: "it's $HOME; `id` \\"x\\""
        EMPTY: ""
        PATH: "/opt/none:{{ lookup('env', 'PATH') }}"
    - {name: locale, ansible.builtin.shell: env | sort, environment: {LC_ALL: C, TZ: Asia/Tokyo}}
    - {name: look, test.probe.look: {}}
    - {name: look again, test.probe.look: {}}
    - {name: look with environment, test.probe.look: {}, environment: {LC_ALL: C, TZ: Asia/Tokyo, HOME: /tmp}}
    - {name: look with another interpreter, test.probe.look: {}, vars: {ansible_python_interpreter: "{{ other }}"}}
    - {name: copy, ansible.builtin.copy: {content: "{{ unicode }}\\n", dest: "{{ work }}/copied"}}
    - {name: copy again, ansible.builtin.copy: {content: "{{ unicode }}\\n", dest: "{{ work }}/copied"}}
    - {name: copy in check mode, ansible.builtin.copy: {content: "other\\n", dest: "{{ work }}/copied"},
       check_mode: true, diff: true}
    - {name: look in check mode, test.probe.look: {}, check_mode: true, diff: true}
    - {name: template, ansible.builtin.template: {src: source.j2, dest: "{{ work }}/templated", mode: "0600"}}
    - name: quoting
      ansible.builtin.copy: {content: "\\nzip_data='QUJD',\\nZIPDATA = 'QUJD'\\n", dest: "{{ work }}/quoted"}
    - {name: no link, ansible.builtin.file: {path: "{{ work }}/no/link", src: none, state: link}}
    - {name: file, ansible.builtin.file: {path: "{{ work }}/folder", state: directory}}
    - {name: link, ansible.builtin.file: {path: "{{ work }}/link", src: copied, state: link}}
    - {name: lineinfile, ansible.builtin.lineinfile: {path: "{{ work }}/lines", line: "{{ unicode }}", create: true}}
    - {name: blockinfile, ansible.builtin.blockinfile: {path: "{{ work }}/lines", block: "two\\nlines"}}
    - {name: stat, ansible.builtin.stat: {path: "{{ work }}/copied"}}
    - {name: slurp, ansible.builtin.slurp: {path: "{{ work }}/copied"}}
    - {name: fetch, ansible.builtin.fetch: {src: "{{ work }}/copied", dest: "{{ work }}/fetched", flat: true}}
    - {name: script, ansible.builtin.script: script.sh}
    - {name: raw, ansible.builtin.raw: "echo raw; exit 4"}
    - {name: package, ansible.builtin.apt: {name: bash}, check_mode: true}
    - {name: missing parameter, ansible.builtin.file: {state: directory}}
    - {name: no such command, ansible.builtin.command: /no/such/command}
    - {name: hidden, ansible.builtin.command: echo secret, no_log: true}
    - {name: async, ansible.builtin.command: "sh -c 'sleep 0.2; echo done'", async: 30, poll: 1}
    - {name: async later, ansible.builtin.command: sleep 0.2, async: 30, poll: 0, register: later}
    - {name: async wait, ansible.builtin.async_status: {jid: "{{ later.ansible_job_id }}"}, register: waited,
       until: waited.finished | bool, retries: 20, delay: 1}
    - {name: background, ansible.builtin.shell: "sleep 0.5 > {{ work }}/background 2>&1 & echo started"}
    - {name: loop, ansible.builtin.command: "echo {{ item }}", loop: [1, 2, 3]}
    - {name: become self, ansible.builtin.command: id -un, become: true}
    - {name: become nobody, ansible.builtin.command: id -un, become: true, become_user: nobody,
       become_method: ansible.builtin.su, become_flags: "-s /bin/sh", when: root | bool}
    - {name: too long, ansible.builtin.command: sleep 20, timeout: 1}
    - {name: override, ansible.builtin.include_role: {name: overriding}}
    - {name: end, test.probe.end: {how: "{{ item }}", folder: "{{ work }}"},
       loop: [junk, big, raise, text, silent, kill, thread, return]}
    - {name: files, ansible.builtin.shell: "cd {{ work }} && stat -c '%n %A %U %s' * | sort"}
"""


class Trial:
    """A playbook in a folder of its own, with the collections and plugins it needs."""

    def __init__(self, folder: Path, packed_modules: Path) -> None:
        self.folder, self.packed_modules = folder, packed_modules
        self.record = folder / "record"
        self.mark = uuid.uuid4().hex
        collections = folder / "collections" / "ansible_collections"
        lifecycle = collections / "hyperpod" / "lifecycle"
        (lifecycle / "plugins").mkdir(parents=True)
        (lifecycle / "galaxy.yml").symlink_to(ROOT / "collection" / "galaxy.yml")
        (lifecycle / "meta").symlink_to(ROOT / "collection" / "meta")
        for kind in ("connection", "plugin_utils"):
            (lifecycle / "plugins" / kind).symlink_to(ROOT / "collection" / "plugins" / kind)
        self.write("collections/ansible_collections/test/probe/plugins/modules/look.py", LOOK)
        self.write("collections/ansible_collections/test/probe/plugins/modules/end.py", END)
        self.write("collections/ansible_collections/test/probe/plugins/module_utils/own.py", "WHO = 'the collection'\n")
        self.write("callbacks/recorder.py", RECORDER)
        self.write("source.j2", "{{ unicode }} {{ ansible_python.version.major }}\n")
        self.write("script.sh", "#!/bin/sh\necho script $0 | sed 's/[0-9].*//'\n")
        for name in ("work", "tmp"):
            (folder / name).mkdir()

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def start(self, connection: str, playbook: str, *options: str, **environment: str) -> subprocess.Popen[str]:
        self.write("playbook.yml", playbook)
        variables = {
            "ansible_python_interpreter": NODE_PYTHON,
            "work": str(self.folder / "work"),
            "other": sys.executable,
            "root": os.getuid() == 0,
        }
        command = [str(ANSIBLE_PLAYBOOK), "-i", "node,", "-c", connection, "-e", json.dumps(variables), "playbook.yml"]
        return subprocess.Popen(
            [*command, *options],
            cwd=self.folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "TRIAL": self.mark,
                "RECORD": str(self.record),
                "ANSIBLE_LOCAL_TEMP": str(self.folder / "tmp"),
                "ANSIBLE_REMOTE_TMP": str(self.folder / "remote"),
                "ANSIBLE_ASYNC_DIR": str(self.folder / "async"),
                "ANSIBLE_HOME": str(self.folder / "home"),
                "ANSIBLE_COLLECTIONS_PATH": str(self.folder / "collections"),
                "TMPDIR": str(self.folder / "tmp"),
                **packed_in(self.packed_modules, recorder=self.folder / "callbacks"),
                "ANSIBLE_NOCOLOR": "1",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, connection: str, playbook: str, *options: str, **environment: str) -> tuple[int, str]:
        process = self.start(connection, playbook, *options, **environment)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def results(self) -> dict[str, Any]:
        """{"HOST TASK": [kind, result]}, repeated names numbered."""
        found: dict[str, Any] = {}
        for line in self.record.read_text().splitlines():
            host, task, kind, result = json.loads(line)
            key = f"{host} {task}"
            found[key if key not in found else f"{key} {len(found)}"] = [kind, result]
        return found

    def processes(self) -> dict[int, str]:
        """Every living process that this trial's run brought about."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"TRIAL={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        return found

    def sockets(self) -> list[Path]:
        return [path for path in (self.folder / "tmp").glob("*/warm-*") if path.is_socket()]


def playbook_of(*tasks: dict[str, Any]) -> str:
    return yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": list(tasks)}])


@pytest.fixture
def trial(tmp_path: Path, packed_modules: Path) -> Iterator[Trial]:
    made = Trial(tmp_path, packed_modules)
    yield made
    for pid in made.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


VARYING = (
    # Without pipelining, which `local` does not use by itself, the wrapper is a file.
    (r'File "[^"]*/AnsiballZ_\w+\.py", (line \d+, in \S+)\n    .*(\n +\^+)?', r'File "<stdin>", \1'),
    (r"\d{4}-\d\d-\d\d[ T@]\d\d:\d\d:\d\d(\.\d+)?~?", "TIME"),
    (r"\b\d+:\d\d:\d\d\.\d+", "DELTA"),
    (r"(ansible-(tmp|moduletmp|local)-)[\w.-]+", r"\1X"),
    (r"ansible_[\w.]+_payload_\w+", "ansible_payload"),
    (r"\bj?\d{10,}\.\d+", "JOB"),
    (r"\.\d+\.TIME", ".PID.TIME"),
    (r"\bkept\w{8}\b", "kept"),
    (r"/tmp/tmp\w+|/tmp\w{8}\b", "/tmpX"),
)
VARYING_KEYS = {"atime", "mtime", "ctime", "inode", "ansible_job_id", "results_file", "frame", "version", "attempts"}
VARYING_KEYS |= {"ansible_date_time", "_original_basename"}


def steady(value: Any, trial: Trial) -> Any:
    """The value without what differs between any two runs."""
    if isinstance(value, dict):
        return {key: steady(item, trial) for key, item in value.items() if key not in VARYING_KEYS}
    if isinstance(value, list):
        return [steady(item, trial) for item in value]
    if isinstance(value, str):
        value = value.replace(str(trial.folder), "FOLDER").replace(trial.mark, "MARK")
        for pattern, replacement in VARYING:
            value = re.sub(pattern, replacement, value)
    return value


def differences(expected: Any, found: Any, at: str = "") -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in expected.keys() | found.keys():
            yield from differences(expected.get(key, "nothing"), found.get(key, "nothing"), f"{at} {key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, pair in enumerate(zip(expected, found, strict=True)):
            yield from differences(*pair, f"{at} {number}")
    elif expected != found:
        yield f"{at}: local {str(expected)[:1000]!r}, warm {str(found)[:1000]!r}"


def scenario_trial(folder: Path, packed_modules: Path) -> Trial:
    folder.mkdir()
    made = Trial(folder, packed_modules)
    core = Path(subprocess.run(
        [sys.executable, "-c", "import ansible; print(ansible.__path__[0])"], check=True, capture_output=True, text=True
    ).stdout.strip())  # fmt: skip
    locale = (core / "module_utils" / "common" / "locale.py").read_text()
    made.write("roles/overriding/module_utils/common/locale.py", locale + "\nWHO = 'the role'\n")
    made.write("roles/overriding/library/look_again.py", LOOK)
    made.write("roles/overriding/tasks/main.yml", yaml.safe_dump([{"name": "look at override", "look_again": {}}]))
    return made


def test_a_scenario_has_the_same_results_as_under_local(tmp_path: Path, packed_modules: Path) -> None:
    outcome = {}
    for connection in ("local", WARM):
        trial = scenario_trial(tmp_path / connection.rpartition(".")[2], packed_modules)
        code, output = trial.run(connection, SCENARIO, "-vvv")
        assert code == 0, output
        outcome[connection] = steady(trial.results(), trial)
        if connection == WARM:
            assert "NOT WARM" not in output
            assert output.count("EXEC (warm)") > 40
    assert len(outcome[WARM]) > 40
    found = list(differences(outcome["local"], outcome[WARM]))
    assert not found, "\n".join(found)
    assert outcome[WARM]["node overriding : look at override"][1]["seen"]["overridden"] == "the role"
    assert outcome[WARM]["node look"][1]["seen"]["own"] == "the collection"
    assert outcome[WARM]["node look in check mode"][1]["check"] is True


def test_workers_share_a_helper_and_none_outlives_the_run(trial: Trial) -> None:
    playbook = playbook_of({"name": "who", "ansible.builtin.command": "sh -c 'ps -o ppid= -p $PPID'"})
    code, output = trial.run(WARM, playbook, "-i", "a,b,c,d", "--forks", "4", "-vvv")
    assert code == 0, output
    assert output.count("EXEC (warm)") == 5
    helpers = {result["stdout"] for key, (_, result) in trial.results().items() if "who" in key}
    assert len(helpers) == 1
    wait_for(lambda: not trial.processes())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_run_leaves_no_process(trial: Trial, number: signal.Signals) -> None:
    run = trial.start(WARM, playbook_of({"ansible.builtin.shell": "trap '' TERM; sleep 301 & sleep 300"}))
    wait_for(lambda: any("sleep 301" in command for command in trial.processes().values()))
    run.send_signal(number)
    wait_for(lambda: not trial.processes())
    run.communicate()


def test_a_task_that_times_out_leaves_no_module(trial: Trial) -> None:
    left = "for attempt in $(seq 600); do pgrep -x -f 'sleep 299' || exit 0; sleep 0.1; done; exit 1"
    too_long = {"ansible.builtin.command": "sleep 299", "timeout": 1, "ignore_errors": True}
    code, output = trial.run(WARM, playbook_of(too_long, {"ansible.builtin.shell": left}))
    assert code == 0, output


def test_another_user_cannot_reach_the_helper(trial: Trial) -> None:
    run = trial.start(WARM, playbook_of({"ansible.builtin.command": "sleep 300"}))
    (address,) = wait_for(trial.sockets)
    wait_for(lambda: any("sleep 300" in command for command in trial.processes().values()))
    # Either is enough: who may not search the folder or write to the socket cannot connect.
    assert [path.stat().st_uid for path in (address, address.parent)] == [os.getuid()] * 2
    assert [stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (address, address.parent)] == [0, 0]
    run.kill()
    run.communicate()


def test_without_a_helper_modules_run_as_under_local(trial: Trial) -> None:
    refusal = 'if [ "$1" = - ]; then echo no helper here >&2; exit 1; fi'
    trial.write("python", f'#!/bin/sh\n{refusal}\nexec {NODE_PYTHON} "$@"\n')
    interpreter = trial.folder / "python"
    interpreter.chmod(0o755)
    playbook = playbook_of({"ansible.builtin.command": "echo once"})
    code, output = trial.run(WARM, playbook, "-vvv", "-e", f"ansible_python_interpreter={interpreter}")
    assert code == 0, output
    assert "NOT WARM" in output
    assert "no helper here" in output
    assert trial.results()["node ansible.builtin.command"][1]["stdout"] == "once"


def test_a_module_whose_helper_dies_is_an_error_and_not_run_again(trial: Trial) -> None:
    count, end = trial.folder / "count", trial.folder / "end"
    until = f"while [ ! -e {end} ]; do sleep 0.1; done"
    run = trial.start(WARM, playbook_of({"ansible.builtin.shell": f"echo x >> {count}; {until}"}))
    wait_for(count.exists)
    helper = min(pid for pid, command in trial.processes().items() if command.startswith(f"{NODE_PYTHON} - "))
    os.kill(helper, signal.SIGKILL)  # the first of that name: the module's process is its child
    end.touch()
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 4, output
    assert "the module may have finished" in output
    assert count.read_text() == "x\n"


def test_pipelining_off_is_the_plain_local_connection(trial: Trial) -> None:
    playbook = playbook_of({"ansible.builtin.command": "true"})
    code, output = trial.run(WARM, playbook, "-vvv", "-e", "ansible_pipelining=false")
    assert code == 0, output
    assert "EXEC (warm)" not in output
    assert not trial.sockets()
