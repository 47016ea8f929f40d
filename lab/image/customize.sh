#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Called by mmdebstrap with the new root: lays a Debian with Slurm out like the HyperPod AMI.
set -eu
root=$1
recipe=$(dirname "$0")

# Slurm lives in /opt/slurm there. Debian's programs stay where their packages put them (slurmd finds slurmstepd by a
# built-in path) and are linked; Debian's programs read /etc/slurm, which is the AMI's /opt/slurm/etc here.
mkdir -p "$root/opt/slurm/bin" "$root/opt/slurm/sbin"
for program in sacct sacctmgr salloc sattach sbatch sbcast scancel scontrol scrontab sdiag sinfo sprio squeue sreport \
    srun sshare sstat strigger; do
    [ ! -e "$root/usr/bin/$program" ] || ln -s "/usr/bin/$program" "$root/opt/slurm/bin/$program"
done
for program in slurmctld slurmd slurmdbd slurmstepd sackd; do
    if [ -L "$root/usr/sbin/$program" ] || [ -e "$root/usr/sbin/$program" ]; then
        ln -s "/usr/sbin/$program" "$root/opt/slurm/sbin/$program"
    fi
done
# Headers are here as soon as libslurm-dev is installed.
mkdir -p "$root/opt/slurm/include"
ln -s /usr/include/slurm "$root/opt/slurm/include/slurm"
cp -r --no-preserve=ownership "$recipe/files/." "$root/"
mkdir -p "$root/usr/lib/fake_fsx"
cp -r --no-preserve=ownership "$recipe/../fakes/fsx/." "$root/usr/lib/fake_fsx/"
mkdir -p "$root/opt/slurm/etc/plugstack.conf.d"
: >"$root/opt/slurm/etc/accounting.conf"
rm -rf "$root/etc/slurm"
ln -s /opt/slurm/etc "$root/etc/slurm"
chroot "$root" install -d -o slurm -g slurm -m 0755 /var/log/slurm /var/spool/slurmctld
chroot "$root" install -d -o root -g root -m 0755 /var/spool/slurmd /opt/ml/config /opt/sagemaker

# FSx: the clients' programs are fakes, over a folder that the nodes of a lab share.
for name in mount.lustre mount.nfs mount.nfs4; do
    ln -s /usr/lib/fake_fsx/fake_mount "$root/usr/sbin/$name"
done
ln -s /usr/lib/fake_fsx/fake_lctl "$root/usr/sbin/lctl"
mkdir "$root/usr/lib/fake_fsx/real"
for name in modprobe modinfo; do
    ln -s /usr/bin/kmod "$root/usr/lib/fake_fsx/real/$name"
    ln -sf /usr/lib/fake_fsx/fake_kmod "$root/usr/sbin/$name"
done

# The AMI's units are files in /etc/systemd/system: masking one really means moving it away first.
for unit in slurmctld slurmd slurmdbd; do
    sed -e '/^#\{0,1\}ConditionPathExists=/d' -e '/^EnvironmentFile=/d' -e '/^PIDFile=/d' \
        -e 's,^ExecStart=/usr/sbin/,ExecStart=/opt/slurm/sbin/,' \
        "$root/usr/lib/systemd/system/$unit.service" >"$root/etc/systemd/system/$unit.service"
    rm "$root/usr/lib/systemd/system/$unit.service"
    rm -f "$root/etc/logrotate.d/$unit" "$root/etc/default/$unit" "$root/etc/init.d/$unit"
    grep -q '^ExecStart=/opt/slurm/sbin/' "$root/etc/systemd/system/$unit.service"
done
# munge's key comes from the agent; a scripts' run starts what it needs.
for unit in slurmctld slurmd slurmdbd sackd munge mariadb mariadb.socket; do
    rm -f "$root"/etc/systemd/system/*.wants/"${unit%.socket}.service" "$root"/etc/systemd/system/*.wants/mariadb.socket
done
# The AMI starts Docker at boot. Here only labs that set containers up pay for it.
for unit in docker.service docker.socket containerd.service; do
    rm -f "$root"/etc/systemd/system/*.wants/"$unit"
done
rm -f "$root/etc/munge/munge.key"
# Nothing of a node's own upkeep disturbs a test; timers of apt would hold its lock.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
    e2scrub_reap.service systemd-pstore.service getty@tty1.service; do
    rm -f "$root"/etc/systemd/system/*.wants/"$unit"
done
ln -sf /dev/null "$root/etc/systemd/system/console-getty.service"
ln -sf /dev/null "$root/etc/systemd/system/getty.target"

chroot "$root" useradd --create-home --uid 1000 --shell /bin/bash ubuntu
echo 'ubuntu ALL=(ALL) NOPASSWD:ALL' >"$root/etc/sudoers.d/90-cloud-init-users"
chmod 0440 "$root/etc/sudoers.d/90-cloud-init-users"
# Every node makes its own identity and host keys at first boot.
: >"$root/etc/machine-id"
rm -f "$root"/etc/ssh/ssh_host_*_key "$root"/etc/ssh/ssh_host_*_key.pub
# No policy against starting services: mmdebstrap's own is only for the build.
rm -f "$root/usr/sbin/policy-rc.d"

# The machine's own trust, so that apt and pip inside a node reach what the machine reaches.
if [ -d /usr/local/share/ca-certificates ]; then
    mkdir -p "$root/usr/local/share/ca-certificates"
    cp -rL /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/"
    chroot "$root" update-ca-certificates >/dev/null
fi
