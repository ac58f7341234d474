#!/usr/bin/env bash
# Breaks and heals real volumes with a running node-healer: three stories (stories.sh), or
# with --all every scene that there is.
#
# Needs root, a built bin/, and grpcurl in $GRPCURL: `make demo` sees to both.
# Everything happens in a mount namespace of its own, beneath one temporary
# directory. Exits with 1 as soon as an answer differs from what the scene announces.
set -euo pipefail
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

fail() {
	echo "demo: $*" >&2
	told=1
	exit 1
}

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"
readonly root

[[ $EUID -eq 0 ]] || fail "must run as root: it mounts filesystems (try: sudo make demo)"
[[ -x ${GRPCURL:-} ]] || fail "GRPCURL must be the path of grpcurl (make demo sets it)"
for program in "$root/bin/node-healer" "$root/bin/node-healer-worker" "$root/bin/demo-fuse"; do
	[[ -x $program ]] || fail "$program is missing (make demo builds it)"
done
[[ -c /dev/fuse ]] || fail "no FUSE here (try: modprobe fuse)"

all=''
if [[ ${1:-} == --all ]]; then
	all=--all
	shift
fi
# Mounts made here are invisible outside, and vanish with the last process.
if [[ ${1:-} != --in-namespace ]]; then
	exec unshare --mount --propagation private -- "${BASH_SOURCE[0]}" ${all:+"$all"} --in-namespace
fi

# ---------------------------------------------------------------- the output

bold='' dim='' green='' red='' reset=''
if [[ -t 1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
	bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' reset=$'\e[0m'
fi

scenes=0
checks=0
told='' # set when the reason for a failure was printed

scene() {
	scenes=$((scenes + 1))
	printf '\n%s%d. %s%s\n' "$bold" "$scenes" "$1" "$reset"
}

say() { printf '   %s\n' "$*"; }

# show COMMAND...: prints the command that a person would type for the next action.
show() { printf '   %s$ %s%s\n' "$dim" "$*" "$reset"; }

indent() { sed 's/^/     /'; }

# fields: a JSON object with one line for each field.
fields() { jq -r '"{\n" + (to_entries | map("  \(.key | tojson): \(.value | tojson)") | join(",\n")) + "\n}"' | indent; }

# check WHAT COMMAND...: fails unless COMMAND succeeds; WHAT is what that shows.
check() {
	local what="$1"
	shift
	if "$@"; then
		checks=$((checks + 1))
		printf '   %sok%s   %s\n' "$green" "$reset" "$what"
		return
	fi
	printf '   %sFAIL%s %s\n' "$red" "$reset" "$what"
	echo "demo: the check failed; the server's log ends with:" >&2
	tail -n 20 "$work/server.log" >&2
	told=1
	exit 1
}

is() { [[ $1 == "$2" ]]; }
has() { [[ $1 == *"$2"* ]]; }

# shellcheck source=container.sh
source "$root/test/demo/container.sh"
# shellcheck source=stories.sh
source "$root/test/demo/stories.sh"

# ---------------------------------------------------------------- the end

work='' image='' staged='' published='' # set by set_up
server=''
disk=''

workers() { pgrep -P "$server" || true; }

stop_server() {
	[[ -n $server ]] || return 0
	# A suspended worker would keep the server from ending.
	local pids
	pids="$(workers)"
	# shellcheck disable=SC2086 # one word per process
	[[ -z $pids ]] || kill -CONT $pids || true
	kill -TERM "$server" || true
	for _ in {1..100}; do
		kill -0 "$server" || break
		sleep 0.05
	done
	kill -KILL "$server" || true
	wait "$server" || true
	server=''
}

# gone COMMAND...: waits for COMMAND to print nothing.
gone() {
	for _ in {1..100}; do
		[[ -n "$("$@")" ]] || return 0
		sleep 0.05
	done
	return 1
}

unmount_all() {
	local path
	unmount_fuse
	for path in "$published" "$staged"; do
		while mountpoint -q "$path"; do
			umount "$path" || umount --lazy "$path" || break
		done
	done
	[[ -z $disk ]] || exec {disk}<&-
	disk=''
	# The loop device's file is on the tmpfs; the device is removed a moment after its last user.
	gone losetup --noheadings --output NAME --associated "$image" || true
	if mountpoint -q "$work"; then
		umount "$work" || umount --recursive --lazy "$work"
	fi
}

# Safe to run twice, and after a partial set_up.
tear_down() {
	[[ -n $work ]] || return 0
	stop_server
	stop_driver # requests that wait for a daemon fail
	stop_container
	unmount_all
	rmdir "$work"
	work=''
}

at_exit() {
	local status=$?
	trap - EXIT
	trap '' INT TERM HUP
	set +e
	# Calls that still wait for an answer.
	local pids
	pids="$(jobs -p)"
	# shellcheck disable=SC2086
	[[ -z $pids ]] || kill -TERM $pids 2>/dev/null
	tear_down 2>/dev/null
	case "$status$told" in
	0 | *1) ;;
	129 | 130 | 143) echo "demo: interrupted, everything was removed" >&2 ;;
	*) echo "demo: a command failed with status $status, everything was removed" >&2 ;;
	esac
	exit "$status"
}

# ---------------------------------------------------------------- the volume

readonly driver=disk.example.com
readonly handle=volume-0001
readonly pv=pvc-6f1c2d3e
# Each demo has its own pod UID: node-healer looks for the pod's containers on
# the whole machine.
pod="$(</proc/sys/kernel/random/uuid)"
readonly pod

kubelet='' socket='' device='' backing='' sum='' # set_up fills them

# stage and publish do what a CSI driver does when kubelet asks it to.
stage() { mount "$1" "$staged"; }

publish() {
	mount --bind "$staged" "$published"
	mount -o remount,bind,nosuid,nodev "$published"
}

# make_directory defers signals, so that none ends the script between making the
# directory and recording its name.
make_directory() {
	local signal=''
	trap 'signal=129' HUP
	trap 'signal=130' INT
	trap 'signal=143' TERM
	work="$(
		trap '' HUP INT TERM
		mktemp --directory --tmpdir node-healer-demo.XXXX
	)"
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
	[[ -z $signal ]] || exit "$signal"
	work="$(cd "$work" && pwd -P)"
}

# Where kubelet has a volume staged and published.
staging_path() { printf %s "$kubelet/plugins/kubernetes.io/csi/$driver/$(printf %s "$1" | sha256sum | cut -d ' ' -f 1)/globalmount"; }
published_path() { printf %s "$kubelet/pods/$pod/volumes/kubernetes.io~csi/$1/mount"; }

# lay_out HANDLE PV: makes the mount points of a volume, with kubelet's files
# beside them.
lay_out() {
	local at
	at="$(staging_path "$1")"
	mkdir -p "$at"
	jq -n --arg d "$driver" --arg h "$1" '{driverName: $d, volumeHandle: $h}' \
		>"${at%/*}/vol_data.json"
	at="$(published_path "$2")"
	mkdir -p "$at"
	jq -n --arg d "$driver" --arg h "$1" --arg p "$2" \
		'{driverName: $d, volumeHandle: $h, specVolID: $p, nodeName: "demo", volumeLifecycleMode: "Persistent"}' \
		>"${at%/*}/vol_data.json"
}

set_up() {
	image="$work/disk.img"
	kubelet="$work/kubelet"
	socket="unix://$work/run/healer.sock"
	staged="$(staging_path "$handle")"
	published="$(published_path "$pv")"

	mount -t tmpfs -o mode=0700,size=128m tmpfs "$work"
	# kubelet's root is shared, so that mounts made there reach containers.
	mount --make-shared "$work"
	mkdir -p "$work/run"
	chmod 0700 "$work/run"
	lay_out "$handle" "$pv"

	truncate -s 64M "$image"
	mkfs.ext4 -q -F "$image"
	# mount makes the loop device such that it is removed with its last user,
	# however this script ends. The descriptor keeps the disk attached until then.
	mount -o loop "$image" "$staged" || fail "cannot mount a loop device here"
	device="$(findmnt --noheadings --output SOURCE "$staged")"
	exec {disk}<"$device"
	backing="$(backing_file)"
	publish
	head -c 1M /dev/urandom >"$published/data"
	sync -f "$published/data"
	sum="$(checksum)"
}

backing_file() { losetup --noheadings --output BACK-INO,BACK-MAJ:MIN "$device" 2>/dev/null || true; }
checksum() { sha256sum <"$published/data" | cut -d ' ' -f 1; }
options() { findmnt --noheadings --output VFS-OPTIONS --mountpoint "$published"; }
mounts() { cat /proc/self/mountinfo; }

# ---------------------------------------------------------------- the calls

grpc() { "$GRPCURL" -plaintext -connect-timeout 1 -max-time 60 "$@"; }

# start_server FLAG...: starts node-healer with further flags.
start_server() {
	local flags=(
		--endpoint="$socket"
		--driver-name="$driver"
		--kubelet-root="$kubelet"
		--state-dir="$work/state"
		--standalone
		--probe-timeout=30s
		"$@"
	)
	show "node-healer ${flags[*]}"
	# The server ends with this script, even if that is killed, and must not
	# hold the disk.
	setpriv --pdeathsig TERM -- "$root/bin/node-healer" "${flags[@]}" \
		>"$work/server.log" 2>&1 {disk}<&- &
	server=$!
	local answer
	for _ in {1..100}; do
		answer="$(grpc "$socket" grpc.health.v1.Health/Check 2>/dev/null || true)"
		if has "$answer" '"SERVING"'; then
			return
		fi
		if ! kill -0 "$server" 2>/dev/null; then
			break
		fi
		sleep 0.05
	done
	cat "$work/server.log" >&2
	fail "the server does not serve"
}

# request VOLUME_ID VOLUME_PATH [STAGING_TARGET_PATH FS_TYPE]: a
# NodeHealerRequest as JSON without its empty fields.
request() {
	jq -n --arg id "$1" --arg path "$2" --arg staging "${3-$staged}" --arg type "${4-ext4}" '
		def filled: with_entries(select(.value != ""));
		{
			volume_id: $id,
			volume_path: $path,
			staging_target_path: $staging,
			volume_capability: {mount: {fs_type: $type} | filled, access_mode: {mode: "SINGLE_NODE_WRITER"}}
		} | filled'
}

# ask REQUEST: makes the call and prints the reply or the error.
ask() { grpc -emit-defaults -d "$1" "$socket" healer.HealerNode/NodeHealer 2>&1; }

# grpcurl ends with 64 + the status code.
readonly ok=0 invalid_argument=67 not_found=69 aborted=74

code=0
reply=''

# call [VOLUME_ID [VOLUME_PATH [STAGING_TARGET_PATH FS_TYPE]]]: makes the call, and
# prints request and reply.
call() {
	local body
	body="$(request "${1-$handle}" "${2-$published}" "${@:3}")"
	show "grpcurl -plaintext -d @ $socket healer.HealerNode/NodeHealer"
	fields <<<"$body"
	code=0
	reply="$(ask "$body")" || code=$?
	print_reply "$reply"
}

print_reply() {
	say 'replied:'
	if [[ $1 == '{'* ]]; then
		fields <<<"$1"
	else
		indent <<<"$1"
	fi
}

abnormal() { jq -r .abnormal <<<"$reply"; }
message() { jq -r .message <<<"$reply"; }

expect_verdict() { # VERDICT ABNORMAL
	check "status OK, abnormal=$2" is "$code $(abnormal)" "$ok $2"
	check "the message starts with \"$1\"" is "$(message | cut -d : -f 1)" "$1"
}

expect_reason() { check "it names $1" has "$(message)" "$1"; }

# ---------------------------------------------------------------- the scenes

described() {
	scene 'What the server offers, asked without any proto file'
	show "grpcurl -plaintext $socket describe healer.HealerNode"
	local service request
	service="$(grpc "$socket" describe healer.HealerNode)"
	indent <<<"$service"
	check 'the service is described' has "$service" 'rpc NodeHealer ( .healer.NodeHealerRequest ) returns ( .healer.NodeHealerResponse )'
	show "grpcurl -plaintext $socket describe .healer.NodeHealerRequest"
	request="$(grpc "$socket" describe .healer.NodeHealerRequest)"
	indent <<<"$request"
	check 'so is the request, with the CSI types' has "$request" '.csi.v1.VolumeCapability volume_capability = 4;'
}

healthy() {
	scene 'The volume is healthy'
	call
	expect_verdict healthy false
}

missing_field() {
	scene 'A required field is missing'
	call ''
	check 'status INVALID_ARGUMENT' is "$code" "$invalid_argument"
	check 'the error names the field' has "$reply" 'volume_id: is required'
}

no_such_path() {
	scene 'There is no such path'
	call "$handle" "${published/$pod/00000000-0000-0000-0000-000000000000}"
	check 'status NOT_FOUND' is "$code" "$not_found"
	check 'the error names the field' has "$reply" 'volume_path: does not exist'
}

bind_lost() {
	scene 'The bind at the target is lost: rebind heals it'
	local before
	before="$(options)"
	show 'umount TARGET; ls -A TARGET | wc -l'
	umount "$published"
	find "$published" -mindepth 1 -maxdepth 1 | wc -l | indent
	check 'the data is gone from the path' test ! -e "$published/data"
	call
	expect_verdict healed false
	expect_reason NotMounted
	check "the data is back, sha256 ${sum:0:16}… as before" is "$(checksum)" "$sum"
	check "mounted with the same options as before: $before" is "$(options)" "$before"
	check 'it can be written to' touch "$published/written"
}

two_at_once() {
	scene 'Two calls at once for one volume: the second gets ABORTED'
	say 'In this scene the worker processes of node-healer are stopped (SIGSTOP), as if'
	say 'the storage did not answer. So the first call is still running when the second'
	say 'one arrives.'
	local suspended pid body first other calls=()
	suspended="$(workers)"
	# shellcheck disable=SC2086
	kill -STOP $suspended
	for pid in $suspended; do
		until [[ $(cut -d ')' -f 2 "/proc/$pid/stat") == ' T'* ]]; do sleep 0.01; done
	done
	body="$(request "$handle" "$published")"
	show 'two of:' "grpcurl -plaintext -d @ $socket healer.HealerNode/NodeHealer"
	fields <<<"$body"
	ask "$body" >"$work/call1" &
	calls[1]=$!
	ask "$body" >"$work/call2" &
	calls[2]=$!
	code=0
	wait -n -p first "${calls[@]}" || code=$?
	other=1
	[[ $first == "${calls[2]}" ]] || other=2
	reply="$(<"$work/call$((3 - other))")"
	say 'The second call returns at once:'
	print_reply "$reply"
	check 'status ABORTED' is "$code" "$aborted"
	check 'the error says since when the first one runs' has "$reply" 'is running since'
	check 'the first call is still running' kill -0 "${calls[other]}"
	# shellcheck disable=SC2086
	kill -CONT $suspended
	code=0
	wait "${calls[other]}" || code=$?
	reply="$(<"$work/call$other")"
	say 'The first call, after the workers were continued:'
	print_reply "$reply"
	expect_verdict healthy false
}

staging_lost() {
	scene 'The staged mount is gone: reported, nothing changed'
	say 'Staging is the task of the CSI driver. The target still works.'
	show 'umount STAGING'
	umount "$staged"
	local before
	before="$(mounts)"
	call
	expect_verdict abnormal true
	expect_reason StagingNotMounted
	check 'the mount table is the same before and after' is "$(mounts)" "$before"
}

both_lost() {
	scene 'The bind at the target is lost too: rebind is refused, and the answer says why'
	show 'umount TARGET'
	umount "$published"
	local before
	before="$(mounts)"
	call
	expect_verdict abnormal true
	expect_reason StagingNotMounted
	expect_reason rebind
	expect_reason 'the staged mount is gone'
	check 'the mount table is the same before and after' is "$(mounts)" "$before"
	check 'the bare directory is still empty' test -z "$(ls -A "$published")"
}

staged_anew() {
	scene 'The driver has staged and published the volume again: healthy'
	show "mount $device STAGING; mount --bind STAGING TARGET"
	stage "$device"
	publish
	call
	expect_verdict healthy false
	check "the data is there, sha256 ${sum:0:16}… as before" is "$(checksum)" "$sum"
}

shut_down() {
	scene 'The filesystem was shut down: stat succeeds, the answer is abnormal'
	show 'perl: ioctl(TARGET, EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_LOGFLUSH)'
	perl -e 'sysopen(my $root, $ARGV[0], 0) or die "open: $!\n"; # O_RDONLY
		my $how = pack("L", 1);
		ioctl($root, 0x8004587d, $how) or die "EXT4_IOC_SHUTDOWN: $!\n"' "$published"
	show 'stat --format "%F, inode %i" TARGET; stat --file-system --format "%T, %f blocks free" TARGET'
	check 'stat succeeds' stat --format '     %F, inode %i' "$published"
	check 'so does statfs' stat --file-system --format '     %T, %f blocks free' "$published"
	show 'touch TARGET/new'
	local error before
	error="$(LC_ALL=C touch "$published/new" 2>&1 || true)"
	indent <<<"$error"
	check 'a write does not' has "$error" 'Input/output error'
	before="$(mounts)"
	if ! findmnt --noheadings --output FS-OPTIONS "$published" | grep -qw shutdown; then
		indent <<<"This kernel ($(uname -r)) does not show in the mount options that an ext4 was"
		indent <<<'shut down (Linux 6.15 does). The rest of this scene is skipped.'
		return
	fi
	call
	expect_verdict abnormal true
	expect_reason FilesystemShutdown
	check 'the mount table is the same before and after' is "$(mounts)" "$before"
}

repaired() {
	scene 'A person followed the advice (unmount, fsck, stage again): healthy'
	show "umount TARGET STAGING; fsck -p $device; mount $device STAGING; mount --bind STAGING TARGET"
	umount "$published" "$staged"
	# 1: errors corrected, or the journal replayed.
	fsck.ext4 -p "$device" 2>&1 | indent || [[ ${PIPESTATUS[0]} -le 1 ]]
	stage "$device"
	publish
	call
	expect_verdict healthy false
	check "the data is there, sha256 ${sum:0:16}… as before" is "$(checksum)" "$sum"
}

nothing_left() {
	local directory="$work"
	tear_down 2>/dev/null
	scene 'Nothing is left'
	check 'no process' is "$(pgrep -f -- "$directory/" || true)" ''
	check 'no container, and no cgroup of one' is "$(cgroups)" ''
	check 'no mount' is "$(grep -cF "$directory" /proc/self/mountinfo || true)" 0
	check 'no loop device' test "$(backing_file)" != "$backing"
	check 'no temporary directory' test ! -e "$directory"
}

every_scene() {
	printf '%sNodeHealer on real volumes%s\n' "$bold" "$reset"
	say "disk       $device, ext4, on Linux $(uname -r)"
	say "staging    $staged"
	say "target     $published"
	start_server
	described
	healthy
	missing_field
	no_such_path
	bind_lost
	two_at_once
	staging_lost
	both_lost
	staged_anew
	shut_down
	repaired
	daemon_killed
	without_a_call
}

# A function, because bash reads it completely before it runs it: a signal while
# bash still reads can end in a syntax error.
main() {
	local since="${EPOCHREALTIME/[.,]/}" # microseconds; some locales write a comma
	trap at_exit EXIT
	make_directory

	set_up
	if [[ -n $all ]]; then
		every_scene
	else
		three_stories
	fi
	nothing_left

	local took=$(((${EPOCHREALTIME/[.,]/} - since) / 1000))
	printf '\n%s%d checks, all passed, in %d.%d s.%s\n' \
		"$bold" "$checks" $((took / 1000)) $((took % 1000 / 100)) "$reset"
}

main
exit
