# Fetches CRIU from Debian testing into a private folder. Part of scripts/setup.
#
# apt does the work, with an own list of sources and own folders for its state, so that the system's
# packages are neither changed nor taken into account.
#
# shellcheck shell=bash

readonly FETCH_DEADLINE=180 # seconds, for each call of apt

FRESH='' # the folder of an installation that is not yet in use

# The addresses of Debian as this system has them, the likeliest first. apt itself reads its
# sources, in all their formats. An archive that is not Debian's but has a suite of the same name
# does no harm: its signature does not verify.
debian_mirrors() {
    local codename=$1 suite
    timeout -k 1 30 apt-get "${APT[@]}" update --print-uris >"$WORK/uris" 2>/dev/null || true
    for suite in "$codename" stable oldstable testing unstable sid; do
        sed -n "s|^'\(.*\)/dists/$suite/InRelease' .*|\1|p" "$WORK/uris"
    done | awk '!seen[$0]++'
}

# Settings read after the system's own, so that its proxies, certificates and logins stay in force.
# Nothing of the system's state is read or written, and none of its hooks run.
write_apt_conf() {
    mkdir -p -- "$WORK/sources" "$WORK/state/lists/partial" "$WORK/cache/archives/partial"
    : >"$WORK/status" # no package is installed, so all that CRIU needs is fetched
    cat >"$WORK/apt.conf" <<END
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Install-Pkgs;
#clear APT::Default-Release;
#clear APT::Architectures;
APT::Architectures { "$1"; };
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::PDiffs "false";
Acquire::Retries "2";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
Dir::Etc::SourceList "/dev/null";
Dir::Etc::SourceParts "$WORK/sources";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "$WORK/state";
Dir::State::status "$WORK/status";
Dir::Cache "$WORK/cache";
Dir::Log "$WORK";
END
}

# In the foreground, so that an interrupt from the terminal reaches apt.
private_apt() {
    timeout --foreground -k 5 "$FETCH_DEADLINE" apt-get -qy -c "$WORK/apt.conf" "$@" </dev/null >"$WORK/apt.log" 2>&1
}

# fetch_packages ARCH CODENAME KEYRING: leaves CRIU and its libraries in $WORK/cache/archives.
fetch_packages() {
    local arch=$1 codename=$2 keyring=$3 mirror
    local -a mirrors
    APT=(-o "Dir::State=$WORK/none" -o "Dir::Cache=$WORK/none")
    mkdir -p -- "$WORK/none/lists/partial"
    mapfile -t mirrors < <(debian_mirrors "$codename")
    if ((${#mirrors[@]} == 0)); then
        say "no address of Debian's archive among apt's sources (suite $codename)"
        return 1
    fi
    write_apt_conf "$arch"
    for mirror in "${mirrors[@]}"; do
        printf 'Types: deb\nURIs: %s\nSuites: testing\nComponents: main\nTargets: Packages\nSigned-By: %s\n' \
            "$mirror" "$keyring" >"$WORK/sources/testing.sources"
        if private_apt update; then
            private_apt --no-install-recommends --download-only install criu && return 0
        fi
    done
    say "apt could not fetch criu from Debian testing (deadline $FETCH_DEADLINE s):"
    grep -E '^(E|W|Err)' "$WORK/apt.log" | tail -n 5 >&2 || true
    if grep -q NO_PUBKEY "$WORK/apt.log"; then
        hint "$keyring lacks the key of Debian testing; upgrade the package debian-archive-keyring"
    else
        hint 'check the network and the proxy that apt is configured with, and run again'
    fi
    return 1
}

# Unpacks into a new folder, which becomes PREFIX/criu by the renaming of a symbolic link once the
# CRIU in it has passed. Until then, and after any failure, the old one is in place.
install_from_debian() {
    local arch=$1 codename=$2 keyring=$3 folder
    say "installing CRIU from Debian testing into $PREFIX/criu"
    make_work
    fetch_packages "$arch" "$codename" "$keyring" || return 1

    FRESH=$(mktemp -d "$PREFIX/criu-XXXXXX") && chmod 0755 "$FRESH" || return 1
    unpack_packages "$FRESH" || return 1
    if ! probe "$FRESH/bin/criu"; then
        say "the CRIU of Debian testing $REASON"
        hint 'if this is a container, it needs more rights, such as --privileged gives'
        return 3
    fi
    ln -s -- "${FRESH##*/}" "$FRESH/link" && mv -T -- "$FRESH/link" "$PREFIX/criu" || return 1
    # The one before, and what a killed setup left.
    for folder in "$PREFIX"/criu-??????; do
        if [[ $folder != "$FRESH" ]]; then rm -rf -- "$folder"; fi
    done
    FRESH=''
}

# unpack_packages FOLDER: the files into FOLDER/root, a program to start CRIU with into FOLDER/bin.
unpack_packages() {
    local folder=$1 root=$1/root deb loader
    mkdir -- "$root" "$folder/bin" || return 1
    for deb in "$WORK"/cache/archives/*.deb; do
        dpkg-deb -x "$deb" "$root" || return 1
    done
    loader=$(compgen -G "$root/usr/lib/*/ld-linux-*.so.*" | head -n 1) || true
    if [[ -z $loader || ! -x $root/usr/sbin/criu ]]; then
        say "Debian testing's packages hold no CRIU and loader where they are expected"
        return 1
    fi
    # CRIU needs the C library that it was built with, hence that library's loader.
    cat >"$folder/bin/criu" <<END || return 1
#!/bin/sh
exec $(quoted "$loader") --inhibit-cache --library-path $(quoted "${loader%/*}") $(quoted "$root/usr/sbin/criu") "\$@"
END
    chmod 0755 "$folder/bin/criu"
}

# quoted WORD: as one word of a shell script.
quoted() { printf "'%s'" "${1//\'/\'\\\'\'}"; }
