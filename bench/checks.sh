#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The floor for a converged `apply --tags slurm` on a compute node: a bare script that looks at the same things.
set -euo pipefail
dpkg-query --show munge logrotate >/dev/null
test -e /opt/slurm/sbin/sackd
for unit in slurmctld sackd; do
    test "$(readlink "/etc/systemd/system/$unit.service")" = /dev/null
    test "$(systemctl is-active "$unit" || :)" = inactive
done
fragment=$(systemctl show slurmd --property=FragmentPath --value)
grep -q '^ExecStart=' "$fragment"
grep -q -- '--conf-server' /etc/systemd/system/slurmd.service.d/hyperpod.conf
test -s /opt/slurm/etc/plugstack.conf
grep -q 'size 50M' /etc/logrotate.d/sagemaker-hyperpod-slurm
systemctl is-enabled --quiet munge slurmd
systemctl is-active --quiet munge slurmd
munge --no-input | unmunge >/dev/null
/opt/slurm/bin/scontrol --oneliner show node "$(hostname -s)" | grep -q 'State='
