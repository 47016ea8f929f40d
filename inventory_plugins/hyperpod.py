# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Inventory plugin for the two JSON files on every node, which `hyperpod_lifecycle.cluster` reads."""

from __future__ import annotations

DOCUMENTATION = r"""
name: hyperpod
short_description: Read the nodes of a SageMaker HyperPod Slurm cluster
description:
  - Reads C(resource_config.json) and C(provisioning_parameters.json)
    and finds this node in them by one of its own addresses.
  - The node is in the groups C(hyperpod), its node type (C(controller), C(login) or C(compute)),
    C(instance_group_*), C(partition_*) and C(instance_type_*), and has the C(hyperpod_*) variables
    that the role P(hyperpod.lifecycle.platform#role) documents.
  - Relative paths of O(resource_config), O(provisioning_parameters) and O(shared_users) start at the directory of
    the source.
  - A source that cannot be read fails the run, whatever C(any_unparsed_is_failed) is set to.
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  plugin:
    description: Marks the file as a source for this plugin.
    required: true
    choices: [hyperpod.lifecycle.hyperpod]
  resource_config:
    description: Path of C(resource_config.json).
    type: path
    default: /opt/ml/config/resource_config.json
  provisioning_parameters:
    description:
      - Path of C(provisioning_parameters.json).
      - The file may not exist if the node types come from C(SlurmConfig).
    type: path
    default: /opt/ml/config/provisioning_parameters.json
  shared_users:
    description:
      - Path of the list of users, with the suffix C(.txt), C(.yaml) or C(.yml),
        or a directory that may contain C(shared_users.txt) or C(shared_users.yaml).
      - If a directory contains both, the text file is read, even if it is empty.
    type: path
    default: /etc/hyperpod-lifecycle
  node:
    description:
      - Instance name of the node to configure, such as V(compute-nodes-1).
      - The default is the node with an address of this machine.
    type: str
  all_members:
    description: Add all nodes that have an address. Nodes other than this one are reached by SSH.
    type: bool
    default: false
  connection:
    description: Connection plugin for this node.
    type: str
    choices: [hyperpod.lifecycle.warm, local]
    default: hyperpod.lifecycle.warm
  python_interpreter:
    description: Python interpreter that runs modules on this node. The system's has C(python3-apt).
    type: path
    default: /usr/bin/python3
  slurm_prefix:
    description: Where the nodes' image has Slurm. The roles get this and what follows as C(hyperpod_*) variables.
    type: path
    default: /opt/slurm
  slurm_config_dir:
    description: Directory of C(slurm.conf). If empty, C(etc) in O(slurm_prefix).
    type: str
    default: ""
  slurm_user:
    description: User of slurmctld and slurmdbd.
    type: str
    default: slurm
  slurm_controller_port:
    description: TCP port of slurmctld. If 0, the configured one, else Slurm's default.
    type: int
    default: 0
  slurm_accounting_port:
    description: TCP port of slurmdbd. If 0, the configured one, else Slurm's default.
    type: int
    default: 0
  architecture:
    description: Architecture of the nodes. If empty, that of this machine.
    type: str
    choices: ["", amd64, arm64]
    default: ""
"""

EXAMPLES = r"""
# inventory/hyperpod.yml: this node, with the platform's own paths
plugin: hyperpod.lifecycle.hyperpod

# the whole cluster, to run Ansible over SSH from the controller
# plugin: hyperpod.lifecycle.hyperpod
# all_members: true
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

from ansible import constants as C
from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin
from ansible.utils.path import unfrackpath
from ansible.utils.unsafe_proxy import wrap_var

try:
    from hyperpod_lifecycle.addresses import find_node
    from hyperpod_lifecycle.cluster import Cluster, Node, load
    from hyperpod_lifecycle.errors import LifecycleError
    from hyperpod_lifecycle.inputs import FILES
    from hyperpod_lifecycle.inventory import CLUSTER_GROUP, NODE_TYPE_GROUPS, GroupNames, Image, host_variables
    from hyperpod_lifecycle.users import User
    from hyperpod_lifecycle.users import load as load_users
except ImportError as error:  # raised in parse: Ansible hides an import error of a plugin among other warnings
    IMPORT_ERROR: ImportError | None = error
else:
    IMPORT_ERROR = None


class InventoryModule(BaseInventoryPlugin):  # type: ignore[misc]
    """The plugin `hyperpod.lifecycle.hyperpod`."""

    NAME = "hyperpod.lifecycle.hyperpod"

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Add this node, or the whole cluster, to `inventory`. Raises AnsibleParserError, which ends the run."""
        super().parse(inventory, loader, path, cache)
        # Otherwise Ansible would continue without hosts and succeed.
        unparsed_is_failed = C.INVENTORY_ANY_UNPARSED_IS_FAILED
        C.INVENTORY_ANY_UNPARSED_IS_FAILED = True
        if IMPORT_ERROR:
            raise AnsibleParserError(f"run Ansible with the Python that has hyperpod-lifecycle: {IMPORT_ERROR}")
        # Ansible ignores a mistyped option, and would read the default files.
        given = self._read_config_data(path)
        unknown = sorted(set(given) - set(self.get_options()))
        if unknown:
            known = ", ".join(sorted(self.get_options()))
            raise AnsibleParserError(f"{path}: unknown option {', '.join(unknown)}; the options are {known}")
        for name in FILES:
            if given.get(name):
                self.set_option(name, unfrackpath(given[name], follow=False, basedir=path))
        try:
            users = load_users(Path(self.get_option("shared_users"))).users
            self._add_cluster(*self._read_cluster(), users)
        except LifecycleError as error:
            raise AnsibleParserError(str(error)) from error
        C.INVENTORY_ANY_UNPARSED_IS_FAILED = unparsed_is_failed

    def _read_cluster(self) -> tuple[Cluster, Node]:
        parameters = Path(self.get_option("provisioning_parameters"))
        name = self.get_option("node")
        cluster = load(
            Path(self.get_option("resource_config")),
            parameters if parameters.exists() else None,
            planning=bool(name),
        )
        return cluster, cluster.node_by_name(name) if name else find_node(cluster, wait_seconds=0)

    def _add_cluster(self, cluster: Cluster, this_node: Node, users: tuple[User, ...]) -> None:
        names = GroupNames(cluster)
        for group in (CLUSTER_GROUP, *NODE_TYPE_GROUPS):
            self.inventory.add_group(group)
        self._add_node(this_node, names, users)
        self._set(this_node, "ansible_connection", self.get_option("connection"))
        self._set(this_node, "ansible_python_interpreter", self.get_option("python_interpreter"))
        if self.get_option("all_members"):
            for instance in cluster.instances:
                if instance.address and instance.name != this_node.name:
                    node = cluster.node_by_name(instance.name)
                    self._add_node(node, names, users)
                    self._set(node, "ansible_host", instance.address)

    def _add_node(self, node: Node, names: GroupNames, users: tuple[User, ...]) -> None:
        self.inventory.add_host(node.name)
        for group in names.of(node):
            self.inventory.add_group(group)
            self.inventory.add_child(group, node.name)
        image = Image(**{field.name: self.get_option(field.name) for field in fields(Image)})
        for variable, value in host_variables(node, users, image).items():
            self._set(node, variable, value)

    def _set(self, node: Node, variable: str, value: Any) -> None:
        # Before 2.19 a string from the files would be rendered as a template, as root.
        self.inventory.set_variable(node.name, variable, wrap_var(value))
