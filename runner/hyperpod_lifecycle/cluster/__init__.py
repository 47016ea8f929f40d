# SPDX-License-Identifier: Apache-2.0
"""The cluster as described by its JSON files. Node types are decided here only.

Two forms exist and both must work (the service's reference pages call the first "legacy", yet fully supported):

* file form: ``provisioning_parameters.json`` names the controller, login and worker groups;
* API-driven form: every group of ``resource_config.json`` has ``SlurmConfig.NodeType``, and the second file does not
  exist or names no groups.

:func:`load` reads them into frozen models or raises one :class:`~hyperpod_lifecycle.errors.InputError` that lists every
problem. Names are compared exactly, and an unknown group is never taken for compute. Uses neither Ansible nor network.
"""

from hyperpod_lifecycle.cluster.model import Cluster, FileSystem, Group, Instance, Node, NodeType, UntypedGroup
from hyperpod_lifecycle.cluster.reading import load

__all__ = ["Cluster", "FileSystem", "Group", "Instance", "Node", "NodeType", "UntypedGroup", "load"]
