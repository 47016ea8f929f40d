#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Called in a container of the bare image: adds what the HyperPod AMI has. $1 has the recipe and the fakes.
set -eu
given=$1
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends bash gcc iptables libc6-dev libslurm-dev make squashfs-tools

cp --recursive --no-preserve=ownership "$given"/ami/files/. /

# Two trees of Slurm, and a link to the one that runs.
version=$(slurmd -V | sed 's/^[^ ]* //' | cut -d. -f1,2)
mv /opt/slurm "/opt/slurm-$version"
ln -s "/opt/slurm-$version" /opt/slurm
mkdir -p /opt/slurm-25.11/bin /opt/slurm-25.11/sbin /opt/slurm-25.11/etc /usr/lib/fake_other_slurm
cp "$given/fakes/other_slurm/fake_other_slurm" /usr/lib/fake_other_slurm/
for program in /opt/slurm/bin/* /opt/slurm/sbin/*; do
    folder=$(basename "$(dirname "$program")")
    ln -s /usr/lib/fake_other_slurm/fake_other_slurm "/opt/slurm-25.11/$folder/$(basename "$program")"
done

# Owners by the AMI's numbers.
renumber() {
    old=$(id -u "$1")
    groupmod --gid "$2" "$1"
    usermod --uid "$2" --gid "$2" "$1"
    find / -xdev -user "$old" -exec chown --no-dereference "$2:$2" {} +
}
renumber slurm 992
renumber munge 991

# slurmd's unit as shipped: it deletes slurm.conf, and has its options by a name that nobody sets.
cat >/etc/systemd/system/slurmd.service <<'UNIT'
[Unit]
Description=Slurm node daemon
After=munge.service network-online.target remote-fs.target
Wants=network-online.target

[Service]
Type=simple
RuntimeDirectory=slurm
RuntimeDirectoryMode=0755
ExecStartPre=-/bin/rm -f /opt/slurm/etc/slurm.conf
ExecStart=/opt/slurm/sbin/slurmd -D $SLURMD_OPTIONS
ExecReload=/bin/kill -HUP $MAINPID
KillMode=process
LimitNOFILE=131072
LimitMEMLOCK=infinity
LimitSTACK=infinity
Delegate=yes
TasksMax=infinity

[Install]
WantedBy=multi-user.target
UNIT

# Enroot and Pyxis, and the plugin of auto-resume.
dpkg --install "$given"/packages/*.deb
build=$(mktemp -d)
cp "$given"/fakes/pyxis/* "$given"/fakes/auto_resume/* "$build"
make --silent --directory="$build" install CPPFLAGS=-I/opt/slurm/include
gcc -Wall -fpic -shared -I/opt/slurm/include -o /usr/local/lib/slurm/fake_auto_resume.so "$build/fake_auto_resume.c"
rm -r "$build"
ln -s /usr/local/share/pyxis/pyxis.conf /opt/slurm/etc/plugstack.conf.d/pyxis.conf
# Nodes do not get included files, so both lines stand in the file itself. No last newline, as seen.
printf 'required /usr/local/lib/slurm/spank_pyxis.so\nrequired /usr/local/lib/slurm/fake_auto_resume.so' \
    >/opt/slurm/etc/plugstack.conf

# The agents.
mkdir -p /usr/lib/fake_agents
cp "$given"/fakes/agents/* /usr/lib/fake_agents/
for name in SageMakerHostAgent SageMakerHealthMonitoringAgent SageMakerClusterAgent SageMakerFluentBit \
    SageMakerJobMonitoringAgent; do
    ln -s /usr/lib/fake_agents/fake_agent "/usr/bin/$name"
done
mkdir -p /opt/dlami/nvme /var/log/aws/clusters
systemctl enable --quiet sagemaker-host-agent sagemaker-health-monitoring-agent sagemaker-role-proxy-agent \
    sagemaker-fluent-bit sagemaker-cluster-agent dlami-nvme fake_ebs
apt-get clean
