#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.blockinfile: settings outside of the block are respected, lists are joined, an Include is added
# to slurm.conf.
"""Manage settings in a file that slurm.conf includes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_conf_block
short_description: Manage settings in a file that slurm.conf includes
description:
  - The agent owns C(slurm.conf), so the settings are written to a file that it includes, in a named block. The same
    settings outside of the block, such as those that other scripts add on each run, are removed. The rest of the file
    is kept.
  - Settings that C(slurm.conf) itself has take precedence. RV(note) lists those with another value.
  - The only change to C(slurm.conf) is an C(Include) line if it is missing. The module first verifies that the line
    does not change what the agent manages.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes.files
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  path:
    description: Included file, in the directory of C(slurm.conf).
    type: path
    required: true
  slurm_conf:
    description: File that includes O(path).
    type: path
    required: true
  block:
    description: Name of the block.
    type: str
    required: true
  settings:
    description: Names and values of the settings.
    type: dict
    required: true
  ours:
    description:
      - Settings that nothing else may set, each with the values that may be replaced. Any other value, in either file,
        is an error.
    type: dict
    default: {}
  several:
    description: Settings that Slurm accepts more than once. Existing ones are kept in both files.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Write the accounting settings
  hyperpod.lifecycle.slurm_conf_block:
    path: /opt/slurm/etc/accounting.conf
    slurm_conf: /opt/slurm/etc/slurm.conf
    block: accounting
    settings:
      AccountingStorageType: accounting_storage/slurmdbd
      AccountingStorageHost: 10.20.0.5
    ours:
      AccountingStorageHost: [localhost]
"""

RETURN = r"""
settings:
  description: Settings in the block, without those that C(slurm.conf) itself has.
  type: dict
  returned: success
note:
  description: Note for the summary. Empty if there is none.
  type: str
  returned: success
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting, slurm
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import write
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.hosts import same_host


def read(path):
    """Return the text of a file; empty if it does not exist."""
    return path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""


def alike(name, one, other, hosts):
    """Return whether two values of a setting are equivalent. `hosts` has name and address of each controller."""
    if not name.lower().endswith("host"):
        return one.lower() == other.lower()
    return same_host(one, other) or any(
        any(same_host(one, word) for word in host) and any(same_host(other, word) for word in host) for host in hosts
    )


def refuse_others(path, text, wanted, ours, hosts):
    """Raise Fault if another value is set for a setting in `ours`."""
    names = {name.lower(): name for name in ours}
    for key, value in slurm.parameters(text):
        name = names.get(key.lower())
        if name and not any(alike(name, value, str(each), hosts) for each in (wanted[name], *ours[name])):
            raise Fault(
                f"{path} has {key}={value}, and here it should be {wanted[name]}: slurmdbd runs on another host "
                "already. Set accounting_enabled: false to leave it there, or delete the line; nothing was changed"
            )


def left_to_slurm_conf(text, settings):
    """Return the names and values that slurm.conf itself sets."""
    names = {name.lower(): name for name in settings}
    return {names[key.lower()]: value for key, value in slurm.parameters(text) if key.lower() in names}


def include(path, before, file):
    """Return slurm.conf with the Include line, after checking that it changes nothing that the agent manages."""
    after = accounting.with_include(before, file)
    if after != before:
        changed = slurm.touched(before, after)
        if changed:
            raise Fault(f"{path}: the line Include {file} would change what the agent manages: {'; '.join(changed)}")
    return after


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "slurm_conf": {"type": "path", "required": True},
            "block": {"type": "str", "required": True},
            "settings": {"type": "dict", "required": True},
            "ours": {"type": "dict", "default": {}},
            "several": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    path, slurm_conf = Path(module.params["path"]), Path(module.params["slurm_conf"])
    block, settings, ours = module.params["block"], module.params["settings"], module.params["ours"]
    if not slurm_conf.exists() and module.check_mode:
        module.exit_json(changed=True, settings=settings, note="")
    try:
        main_before, before = read(slurm_conf), read(path)
        others, hosts = accounting.without_block(before, block), slurm.controller_hosts(main_before)
        refuse_others(slurm_conf, main_before, settings, ours, hosts)
        refuse_others(path, others, settings, ours, hosts)
        several = module.params["several"]
        there = left_to_slurm_conf(
            main_before, {name: value for name, value in settings.items() if name not in several}
        )
        kept = {name: value for name, value in settings.items() if name not in there}
        after = accounting.with_block(before, block, kept, several)
        main_after = include(slurm_conf, main_before, path.name)
        if not module.check_mode:
            if after != before:
                write(path, after)
            if main_after != main_before:
                if read(slurm_conf) != main_before:
                    raise Fault(f"the agent has just written {slurm_conf}; run again")
                write(slurm_conf, main_after)
    except Fault as fault:
        module.fail_json(msg=str(fault))
    other = [f"{name}={value}" for name, value in there.items() if not alike(name, value, str(settings[name]), hosts)]
    module.exit_json(
        changed=(before, main_before) != (after, main_after),
        settings=kept,
        note=f"{slurm_conf} itself has {', '.join(other)}, which is kept" if other else "",
        diff=[
            {"before": old, "after": new, "before_header": str(file), "after_header": str(file)}
            for file, old, new in ((path, before, after), (slurm_conf, main_before, main_after))
            if old != new
        ],
    )


if __name__ == "__main__":
    main()
