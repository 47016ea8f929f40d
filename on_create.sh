#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What HyperPod calls on every new node, as root, from a temporary folder. It finds a Python, makes the environment of
# hyperpod-lifecycle, keeps the log, and ends with the exit status of `hyperpod-lifecycle apply`; arguments go to it.
#
#   exit 0    the node is set up, or this is no HyperPod cluster at all
#   exit 1    the resource_config.json that was named is absent, or this script could not do its own part
#   exit 6    another run holds this node and did not end within --lock-wait, or 900 s
#   exit 130  a signal stopped it before hyperpod-lifecycle started
#   any other status is that of hyperpod-lifecycle: see README.md
#
# When it fails below /tmp, where the platform runs it, it stays for HYPERPOD_LOG_GRACE seconds, 60 by default, so that
# CloudWatch has the last line before the platform ends the instance.

# shellcheck disable=SC2317 # functions are called through run, poll_until and trap
set -Eeuo pipefail

readonly path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
readonly platform_config=/opt/ml/config
readonly parameters=provisioning_parameters.json
readonly prefix=/opt/hyperpod-lifecycle
readonly settings=/etc/hyperpod-lifecycle
readonly link=/usr/local/bin/hyperpod-lifecycle
readonly log=/var/log/provision/provisioning.log
readonly lock=/run/hyperpod-lifecycle/lock # that of every run on this node
readonly index_limit=300 apt_limit=300     # seconds
# What of the caller's environment hyperpod-lifecycle may see.
readonly passed=(http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY TZ)

here=          # the uploaded folder; nothing in it is needed once hyperpod-lifecycle is installed
python=        # the interpreter that the environment is made from
python_name=   # the name it was found by
python_tag=    # its version, X.Y
version=       # of hyperpod-lifecycle in $here
content=       # what of $here it is installed from: `wheels`, or `.` for the source
env=           # the environment for exactly this content and interpreter
pip_program=() # what the environment's interpreter runs as pip
child=         # whom a signal is handed on to: a process or (negative) a process group
status=        # of the last `run`
signals=0      # how many came so far
stopped_by=    # the last one
tee_pid=       # of the log's writer
lock_limit=900 # seconds to wait for another run, unless --lock-wait says otherwise

say() { printf 'on_create.sh: %s\n' "$*"; }

die() {
    say "$*"
    exit 1
}

# ---- the log: every line, first to last, on standard output and in the file ----

open_log() {
    local reason number=1
    { : 3>&1; } 2>/dev/null || exec >/dev/null # it may be closed
    exec 3>&1 2>&1
    if reason=$(make_log 2>&1); then
        # grep counts 0 and fails in a log without runs.
        number=$(grep -c '^===== on_create.sh, run ' "$log" || true)
        number=$((number + 1))
        # tee outlives every signal meant for the run, and a reader of standard output that went away.
        exec > >(
            trap '' HUP INT TERM
            exec tee -a -p "$log" >&3 3>&-
        ) 2>&1
        tee_pid=$!
    fi
    printf '===== on_create.sh, run %d in this log, %(%Y-%m-%dT%H:%M:%S%z)T, process %d, from %s =====\n' "$number" -1 $$ "$here"
    [[ -z $reason ]] || say "no log at $log (${reason##*: }): this run is shown on standard output only"
}

make_log() (
    mkdir -p "${log%/*}" && chmod 0755 "${log%/*}" && umask 027 && : >>"$log" && chmod 0640 "$log"
)

# tee ends when the last writer has gone. It may be late, as its disk or its reader is; when it is late because a process
# of the run has stayed, that is named after everything else, and then nobody waits for tee any more.
close_log() {
    local pipe turn left remark=
    [[ -n $tee_pid ]] || return 0
    pipe=$(readlink /proc/$$/fd/1)
    exec >&3 2>&3 3>&- 9>&-
    for ((turn = 1; turn <= 1200; turn++)); do # a minute
        kill -0 "$tee_pid" 2>/dev/null || return 0
        if [[ -n $remark ]]; then
            if tail -c 4096 "$log" | grep -qF "$remark"; then
                kill -KILL "$tee_pid"
                return
            fi
        elif ((turn % 100 == 0)); then
            left=$(writers "$pipe")
            if [[ -n $left ]]; then
                remark="left behind by the run, and still writing to its log: $left"
                say "$remark" >"/proc/$tee_pid/fd/0" & # which is full when tee does not read
            fi
        fi
        sleep 0.05
    done
    kill -KILL "$tee_pid"
    say "the log could not be written within 60 s: its last lines may be missing" >>"$log"
}

# What an EXIT trap does last. The log is whole when it waits, and the lock free.
stay_for_logs() {
    if (($1 != 0)) && [[ $here == /tmp/* && -z $stopped_by ]]; then
        exec 9>&-
        run process sleep "${HYPERPOD_LOG_GRACE:-60}"
    fi
}

# The processes that hold a pipe, tee aside.
writers() {
    local place pid found=()
    while read -r place; do
        pid=${place#/proc/} pid=${pid%%/*}
        [[ $pid == "$tee_pid" || " ${found[*]} " == *" $pid "* ]] || found+=("$pid")
    done < <(find /proc/[0-9]*/fd -lname "${1//[\[\]]/?}" 2>/dev/null || true)
    ((${#found[@]} == 0)) || printf 'process %s (%s)' "${found[0]}" "$(tr '\0' ' ' <"/proc/${found[0]}/cmdline" 2>/dev/null)"
}

# ---- long steps: in the background, so that a signal is handed on at once, and waited for ----

on_signal() {
    stopped_by=$1
    signals=$((signals + 1))
    # It may have ended just now.
    [[ -z $child ]] || kill -s "$1" -- "$child" 2>/dev/null || true
}

# run group|process COMMAND...: in a process group of its own; a signal is for all of it or for its leader. Sets status.
run() {
    local whom=$1 before
    shift
    set -m
    "$@" 3>&- &
    set +m
    child=$!
    [[ $whom == process ]] || child=-$child
    [[ -z $stopped_by ]] || on_signal "$stopped_by"
    while true; do
        before=$signals status=0
        wait "${child#-}" 2>/dev/null || status=$? # bash would print the command when it was killed
        ((signals != before)) || break
    done
    child=
}

stop_if_signalled() {
    [[ -n $stopped_by ]] || return 0
    say "stopped by SIG$stopped_by before hyperpod-lifecycle started; running on_create.sh again is safe"
    exit 130
}

# poll_until SECONDS WHAT COMMAND...: what the command said last is shown when it never succeeded.
poll_until() {
    local limit=$1 what=$2 said deadline=$((SECONDS + $1))
    shift 2
    until said=$("$@" 2>&1); do
        if ((SECONDS >= deadline)); then
            printf '%s\n' "$said"
            return 1
        fi
        [[ -z $what ]] || say "waiting up to $limit s for $what"
        what=
        sleep 1
    done
}

# ---- one run at a time ----

# One lock from here to the end of apply, which is handed descriptor 9. No run sees its settings change, and the kernel
# drops the lock with the last process that works under it, however that ends.
open_lock() {
    (umask 077 && mkdir -p "${lock%/*}" && : >>"$lock")
    exec 9<>"$lock"
    # shellcheck disable=SC2076 # a space on either side, as it is
    [[ ! " $* " =~ ' --lock-wait'[\ =]([0-9]+(\.[0-9]+)?)' ' ]] || lock_limit=${BASH_REMATCH[1]}
}

take_lock() {
    if ! flock -n 9; then
        say "waiting up to $lock_limit s for another run: $(lock_holder)"
        flock -w "$lock_limit" 9 || exit 6
    fi
    printf '{"pid": %d, "since": "%s", "command": "on_create.sh"}' $$ "$(date --utc --iso-8601=seconds)" >"$lock"
}

lock_holder() {
    local said
    said=$(sed -nE 's/^\{"pid": ([0-9]+), "since": "([^"]*)", "command": "(.*)"\}$/pid \1 since \2, \3/p' "$lock")
    printf '%s' "${said:-a run that is just starting}"
}

# ---- Python ----

find_python() {
    local name answer found=()
    for name in python3 python3.13 python3.12 python3.11 python3.10; do
        command -v "$name" >/dev/null || continue
        answer=$("$name" -I -S -c '
import os, sys
print("%d.%d" % sys.version_info[:2], os.path.realpath(sys.executable))
sys.exit(sys.version_info < (3, 10))' 2>&1) && {
            python_name=$name python_tag=${answer%% *} python=${answer#* }
            return
        }
        found+=("$name: ${answer##*$'\n'};")
    done
    die "no Python 3.10 or newer here (found: ${found[*]:-none}): install python3.10 or newer in the image"
}

# What would be installed, and the name of the environment that holds exactly that.
identify() {
    local hash wheels=("$here"/wheels/hyperpod_lifecycle-*.whl)
    if [[ -e ${wheels[0]} ]]; then
        ((${#wheels[@]} == 1)) || die "more than one hyperpod_lifecycle wheel in $here/wheels: keep the one you mean"
        version=${wheels[0]##*/hyperpod_lifecycle-}
        version=${version%%-*}
        content=wheels
    elif [[ -e $here/pyproject.toml ]]; then
        version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$here/runner/hyperpod_lifecycle/__init__.py")
        content=.
    else
        die "neither wheels/hyperpod_lifecycle-*.whl nor pyproject.toml in $here: upload what 'hyperpod-lifecycle bundle' makes"
    fi
    hash=$(
        cd "$here"
        {
            printf '%s %s\n' "$python_tag" "$python"
            find "$content" \( -name '.?*' -o -name __pycache__ -o -path ./inventory -o -path "./$parameters" \
                -o -path './shared_users.*' \) -prune \
                -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
        } | sha256sum
    )
    env=$prefix/$version-${hash:0:12}
}

# ---- the environment ----

prepare() {
    mkdir -p "$prefix"
    [[ -e $env/.complete ]] || install_environment
    activate
    keep_inventory
    keep_users
}

# An environment by hand, with pip run straight from its wheel: neither `venv` nor `ensurepip` is needed for it.
install_environment() {
    say "installing hyperpod-lifecycle $version with Python $python_tag in $env"
    rm -rf "$env"
    mkdir -p "$env/bin" "$env/tmp" "$env/lib/python$python_tag/site-packages"
    ln -s lib "$env/lib64"
    ln -s "$python" "$env/bin/python3"
    printf '%s\n' "home = ${python%/*}" 'include-system-site-packages = false' "version = $python_tag" >"$env/pyvenv.cfg"
    export TMPDIR=$env/tmp HOME=/root
    find_pip
    if [[ $content == wheels ]]; then
        PIP_CONFIG_FILE=/dev/null must "pip could not install hyperpod-lifecycle from $here/wheels" \
            pip install --no-compile --no-index --find-links "$here/wheels" "hyperpod-lifecycle==$version"
    else
        poll_until "$index_limit" "the package index" index_answers ||
            die "the package index did not answer within $index_limit s: set it in /etc/pip.conf, or upload what 'hyperpod-lifecycle bundle' makes"
        must "pip could not install hyperpod-lifecycle from $here" pip install --no-compile "$here"
    fi
    rm -rf "$env/tmp"
    : >"$env/.complete" # the last thing: without it the next run starts over
}

pip() {
    local verb=$1
    shift
    "$env/bin/python3" -I "${pip_program[@]}" --isolated --disable-pip-version-check --no-input --no-cache-dir --quiet \
        "$verb" "$@"
}

# must WHAT COMMAND...: show what it says, and when it fails end with the cause that its lines or its status show.
must() {
    local what=$1 said code=0 again="then run on_create.sh again"
    shift
    said=$("$@" 2>&1) || code=$?
    [[ -z $said ]] || printf '%s\n' "$said"
    ((code != 0)) || return 0
    ((code <= 128)) ||
        die "$what: killed by SIG$(kill -l "$code"); look for the reason (such as too little memory) in journalctl -k, $again"
    case $said in
        *'[Errno 28]'* | *'[Errno 122]'*) die "$what: no space left in $prefix; make some, $again" ;;
        *'[Errno 12]'* | *MemoryError*) die "$what: too little memory; end what uses it, $again" ;;
        *'No matching distribution found'*)
            said=${said##*No matching distribution found for }
            [[ $content != wheels ]] || die "no bundled wheels match Python $python_tag on $(uname -m)" \
                "(pip has none for ${said%%$'\n'*}): upload what" \
                "'hyperpod-lifecycle bundle --python $python_tag --machine $(uname -m)' makes"
            die "the package index has none that matches Python $python_tag for ${said%%$'\n'*}:" \
                "complete it, or upload what 'hyperpod-lifecycle bundle' makes"
            ;;
    esac
    die "$what: see its own lines above"
}

find_pip() {
    local wheels=("$here"/wheels/pip-*.whl)
    if [[ -e ${wheels[0]} ]]; then
        pip_program=("${wheels[0]}/pip")
        return
    fi
    pip_program=(-m pip)
    if ! "$env/bin/python3" -I -c 'import ensurepip' 2>/dev/null; then
        command -v apt-get >/dev/null ||
            die "$python has no ensurepip and there is no wheels/pip-*.whl: upload what 'hyperpod-lifecycle bundle' makes"
        say "installing $python_name-venv, because there is no wheels/pip-*.whl and no ensurepip"
        # Nothing that a package starts may keep our lock.
        poll_until "$apt_limit" "apt-get to install $python_name-venv" install_ensurepip 9>&- ||
            die "$python_name-venv could not be installed within $apt_limit s: add it to the image, or upload what 'hyperpod-lifecycle bundle' makes"
    fi
    must "$python could not install its pip" "$env/bin/python3" -I -m ensurepip
}

# As module_utils/apt.py of the collection does it: its test is for both.
install_ensurepip() {
    local options=(-qq -o DPkg::Lock::Timeout=60 -o Acquire::Retries=3)
    export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
    # It fails when any repository is broken; the lists of the others are up to date then.
    apt-get "${options[@]}" --allow-releaseinfo-change update || true
    [[ -z $(dpkg --audit) ]] || dpkg --configure --pending || true
    apt-get "${options[@]}" install -y --no-install-recommends "$python_name-venv"
}

# pip is asked rather than a host name: it knows of mirrors, proxies and certificates.
index_answers() {
    if command -v ip >/dev/null && [[ -z $(ip -o address show up scope global) ]]; then
        say "this node has no address but loopback yet"
        return 1
    fi
    pip download --retries 0 --timeout 5 --no-deps --dest "$TMPDIR/probe" ansible-runner
}

# Nothing where there is no link.
target_of() { readlink "$1" || true; }

# point LINK TARGET: atomically
point() {
    ln -sfn "$2" "$1.new"
    mv -fT "$1.new" "$1"
}

# The environment before this one stays, for a way back; older ones go.
activate() {
    local previous old
    previous=$(target_of "$prefix/current")
    if [[ $previous != "${env##*/}" ]]; then
        point "$prefix/current" "${env##*/}"
        for old in "$prefix"/*; do
            [[ -L $old || $old == "$env" || $old == "$prefix/$previous" ]] || rm -rf "$old"
        done
    fi
    if [[ $(target_of "$link") != "$prefix/current/bin/hyperpod-lifecycle" ]]; then
        mkdir -p "${link%/*}"
        point "$link" "$prefix/current/bin/hyperpod-lifecycle"
    fi
}

# The user's inventory, for root only. `inventory` and `inventory.previous` are links, so that they change at once.
keep_inventory() {
    local new old='' each kept=$settings/inventory
    [[ -d $here/inventory ]] || return 0
    mkdir -p "$settings"
    chmod 0700 "$settings"
    new=$(mktemp -d "$settings/.inventory.XXXXXX")
    (
        umask 077
        cp -RL "$here/inventory/." "$new"
    )
    if diff -rq "$kept" "$new" >/dev/null 2>&1; then
        rm -rf "$new"
        return
    fi
    if [[ -L $kept ]]; then
        old=$settings/$(target_of "$kept")
    elif [[ -e $kept ]]; then # a folder that someone else made
        old=$(mktemp -d "$settings/.inventory.XXXXXX")
        mv -T "$kept" "$old"
    fi
    if [[ -n $old ]]; then
        say "the uploaded inventory differs from the one on this node, which stays as $kept.previous"
        point "$kept.previous" "${old##*/}"
    fi
    point "$kept" "${new##*/}"
    for each in "$settings"/.inventory.*; do
        [[ $each == "$new" || $each == "$old" ]] || rm -rf "$each"
    done
}

# The list of users, for root only. One that is uploaded takes the place of the one before, whatever their formats.
keep_users() {
    local each name new=()
    for each in "$here"/shared_users.{txt,yaml,yml}; do
        [[ ! -f $each ]] || new+=("${each##*/}")
    done
    ((${#new[@]} > 0)) || return 0
    mkdir -p "$settings"
    chmod 0700 "$settings"
    for name in "${new[@]}"; do
        (
            umask 077
            rm -f "$settings/.$name"
            cp "$here/$name" "$settings/.$name"
        )
        mv -fT "$settings/.$name" "$settings/$name"
    done
    for each in "$settings"/shared_users.{txt,yaml,yml}; do
        [[ " ${new[*]} " == *" ${each##*/} "* ]] || rm -f "$each"
    done
}

# The options for `env` that leave only what hyperpod-lifecycle may see. Values of others stay out of the command line.
hidden() {
    local entry
    while IFS= read -r -d '' entry; do
        [[ " ${passed[*]} " == *" ${entry%%=*} "* ]] || printf '%s\0' "--unset=${entry%%=*}"
    done < <(env --null)
}

main() {
    local resource_config arguments beside default signal hide
    exec </dev/null
    umask 022
    export PATH=$path
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
    resource_config=${SAGEMAKER_RESOURCE_CONFIG_PATH:-$platform_config/resource_config.json}
    [[ $resource_config == /* ]] || resource_config=$PWD/$resource_config
    cd /

    for signal in HUP INT TERM; do
        # shellcheck disable=SC2064 # the name is wanted as it is now
        trap "on_signal $signal" "$signal"
    done
    open_log
    trap 'code=$?; close_log; stay_for_logs "$code"' EXIT
    trap 'say "failed unexpectedly at line $LINENO: $BASH_COMMAND"' ERR

    ((EUID == 0)) || die "must run as root, as HyperPod does, but runs as user $EUID: use sudo"
    if [[ ! -e $resource_config ]]; then
        [[ -z ${SAGEMAKER_RESOURCE_CONFIG_PATH:-} ]] ||
            die "SAGEMAKER_RESOURCE_CONFIG_PATH names $resource_config, which does not exist: name the file that the platform wrote"
        say "no $resource_config: a vanilla cluster, nothing to do"
        exit 0
    fi

    find_python
    identify
    open_lock "$@"
    run group take_lock
    stop_if_signalled
    if ((status == 6)); then
        say "another run holds this node: $(lock_holder); wait until it ends, or give --lock-wait more seconds"
        exit 6
    fi
    ((status == 0)) || exit 1
    run group prepare
    stop_if_signalled
    ((status == 0)) || exit 1

    arguments=(--resource-config "$resource_config")
    default=$platform_config/$parameters
    beside=$here/$parameters
    if [[ -e $beside && ! -e $default ]]; then
        arguments+=(--provisioning-parameters "$beside")
    elif [[ -e $beside ]] && ! cmp -s "$beside" "$default"; then
        say "$default is used; the $parameters that was uploaded differs from it"
    fi
    readarray -d '' -t hide < <(hidden)
    run process env "${hide[@]}" HOME=/root LANG=C.UTF-8 PATH="$path" HYPERPOD_LIFECYCLE_LOCK=9 \
        "$env/bin/hyperpod-lifecycle" apply "${arguments[@]}" "$@"
    exec 9>&-
    # Python may have had no time yet to take a signal.
    if [[ -n $stopped_by ]] && ((status != 130 && status == 128 + $(kill -l "$stopped_by"))); then
        stop_if_signalled
    fi
    ((status <= 128 || status == 130)) || # 130 is its own, with its own last line
        say "hyperpod-lifecycle was killed by SIG$(kill -l "$status"): look for the reason in journalctl -k, then run on_create.sh again"
    exit "$status"
}

main "$@"
