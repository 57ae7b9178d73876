# Does this CRIU work here? Part of scripts/setup; knows nothing of how one is installed.
#
# shellcheck shell=bash

# Older ones pass `criu check` but cannot dump a TCP socket on Linux 6.16 and later, or do not start
# at all from 6.13 on.
readonly CRIU_FLOOR=4.2
readonly CRIU_DEADLINE=15 # seconds for a dump or a restore of the self-test, which take 0.1

CRIU_VERSION='' # of the CRIU probed last
REASON=''       # why the CRIU probed last is no good
SUBJECT=''      # pid of the self-test's process, while there may be one

# probe PATH: is this a CRIU to use? Sets CRIU_VERSION, and REASON if not.
probe() {
    local criu=$1 text status=0
    CRIU_VERSION='' REASON=''
    if [[ ! -f $criu || ! -x $criu ]]; then
        REASON='is not an executable file'
        return 1
    fi
    text=$(timeout -k 1 5 "$criu" --version 2>&1 </dev/null) || status=$?
    if ((status)); then
        REASON="does not tell its version: exit status $status${text:+, ${text%%$'\n'*}}"
        return 1
    fi
    if [[ ! $text =~ Version:\ *([0-9][0-9.]*) ]]; then
        REASON='prints no version; is it CRIU?'
        return 1
    fi
    CRIU_VERSION=${BASH_REMATCH[1]}
    if ! at_least "$CRIU_VERSION" "$CRIU_FLOOR"; then
        REASON="is version $CRIU_VERSION; $CRIU_FLOOR or later is needed"
        return 1
    fi
    if ((EUID != 0)); then return 0; fi
    passed_before "$criu" && return 0
    # Nothing in it writes to stderr but bash, which would announce that the dumped process was killed.
    self_test "$criu" 2>/dev/null || return 1
    remember_pass "$criu"
}

# One line for each CRIU that passed the self-test. Only passes are remembered: a failure may be
# gone with the next run, when the container got the capability it lacked.
verdict_of() { printf '%s\t%s\t%s' "$(uname -r)" "$(stat -L -c %Y -- "$1")" "$(realpath -- "$1")"; }

passed_before() {
    [[ -f $VERDICTS ]] && grep -qxF -- "$(verdict_of "$1")" "$VERDICTS"
}

remember_pass() {
    local next=$VERDICTS.$$
    mkdir -p -- "$PREFIX" 2>/dev/null || return 0 # it is only slower next time
    if {
        # The latest twenty; kernels and installations come and go.
        if [[ -f $VERDICTS ]]; then tail -n 19 -- "$VERDICTS"; fi
        verdict_of "$1"
        echo
    } 2>/dev/null >"$next"; then
        mv -- "$next" "$VERDICTS"
    fi
}

# A server in its own session on /dev/null that answers "pong". Writes its port to the file $1.
# Descriptors that came from our caller are closed: CRIU would have to dump them.
# perl first: it is part of every Debian, and starts faster.
run_subject() {
    if have perl; then
        # shellcheck disable=SC2016 # the variables are perl's
        exec setsid perl -MIO::Socket::INET -MPOSIX -e '
            POSIX::close($_) for 3 .. 1023;
            $SIG{PIPE} = "IGNORE";
            my $port = shift;
            my $l = IO::Socket::INET->new(Listen => 8, LocalAddr => "127.0.0.1") or exit 1;
            open my $f, ">", "$port.new" or exit 1;
            print $f $l->sockport, "\n";
            close $f;
            rename "$port.new", $port;
            while (my $c = $l->accept) { print $c "pong\n"; close $c }' "$1"
    fi
    exec setsid python3 -I -c '
import os, socket, sys
os.closerange(3, 1024)
port = sys.argv[1]
l = socket.create_server(("127.0.0.1", 0))
with open(port + ".new", "w") as f:
    print(l.getsockname()[1], file=f)
os.rename(port + ".new", port)
while True:
    c = l.accept()[0]
    c.sendall(b"pong\n")
    c.close()' "$1"
}

stop_subject() {
    if [[ -z $SUBJECT ]]; then return 0; fi # a bare return would fail in a trap after a failure
    # Once dumped and reaped it is no child of ours any more. Then its pid is that of the restored
    # process, or of one that CRIU left half restored, only if its command line names our folder.
    if jobs -p | grep -qx "$SUBJECT" || grep -qsF -- "$WORK/" "/proc/$SUBJECT/cmdline"; then
        kill -KILL "$SUBJECT" || true
        wait "$SUBJECT" || true
    fi
    SUBJECT=''
}

# The first error in CRIU's log is the cause and the rest its consequences, apart from the line
# about RLIMIT_NOFILE, which is there whenever CAP_SYS_RESOURCE is missing and does no harm.
cause_in() {
    local line
    line=$(grep -s 'Error (' "$1" | grep -v RLIMIT_NOFILE | head -n 1) || true
    line=${line#*Error (}
    printf '%s' "${line#*: }"
}

# self_test PATH: dumps and restores a server. `criu check` does not suffice: 4.1.1 says "Looks
# good." on kernels where it cannot dump any TCP socket.
self_test() {
    local criu=$1 port answer='' tries=0 operation cause
    if ! have perl && ! have python3; then
        REASON='cannot be tested: neither perl nor python3 is here'
        return 1
    fi
    make_work
    rm -rf -- "$WORK/port" "$WORK/img"
    mkdir -m 0700 -- "$WORK/img" || return 1
    (cd / && run_subject "$WORK/port") </dev/null >/dev/null 2>&1 &
    SUBJECT=$!
    until [[ -s $WORK/port ]]; do
        if ((++tries > 250)); then
            REASON='cannot be tested: the process to dump did not start within 5 s'
            stop_subject
            return 1
        fi
        sleep 0.02
    done
    read -r port <"$WORK/port"

    for operation in dump restore; do
        local arguments=("$operation" --no-default-config -D "$WORK/img" -o "$operation.log" -v4)
        if [[ $operation == dump ]]; then arguments+=(-t "$SUBJECT"); else arguments+=(-d); fi
        if ! timeout -k 1 "$CRIU_DEADLINE" "$criu" "${arguments[@]}" </dev/null >"$WORK/out" 2>&1; then
            cause=$(cause_in "$WORK/img/$operation.log")
            cause=${cause:-$(head -n 1 "$WORK/out")}
            REASON="fails to $operation a process with a TCP listener: ${cause%: }"
            stop_subject
            return 1
        fi
        # A dumped process stays a zombie, and keeps its pid from the restore, until it is reaped.
        if [[ $operation == dump ]]; then wait "$SUBJECT" || true; fi
    done

    # shellcheck disable=SC2016 # expanded by the inner shell
    answer=$(timeout -k 1 5 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" && read -r line <&3 && echo "$line"' _ "$port" 2>/dev/null) || true
    stop_subject
    if [[ $answer != pong ]]; then
        REASON='restores a process with a TCP listener that does not answer'
        return 1
    fi
}
