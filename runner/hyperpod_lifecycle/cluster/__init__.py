# SPDX-License-Identifier: Apache-2.0
"""The cluster as its JSON files describe it: the one place where node types are decided.

Two forms exist and both must work (the service's reference pages call the first "legacy", yet fully supported):

* file form: ``provisioning_parameters.json`` names the controller, login and worker groups;
* API-driven form: every group of ``resource_config.json`` has ``SlurmConfig.NodeType``, and there is no second file, or
  one that names no groups.

:func:`load` reads them into frozen models or raises one :class:`~hyperpod_lifecycle.errors.InputError` that lists every
problem. Comparison is exact; nothing that is unknown falls back to compute. No Ansible here and no network.
"""

from hyperpod_lifecycle.cluster.model import Cluster, FileSystem, Group, Instance, Node, NodeType, UntypedGroup
from hyperpod_lifecycle.cluster.reading import load

__all__ = ["Cluster", "FileSystem", "Group", "Instance", "Node", "NodeType", "UntypedGroup", "load"]
