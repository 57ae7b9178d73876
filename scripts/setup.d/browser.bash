# Finds a browser for the tests that open a page, or installs Debian's. Part of scripts/setup.
#
# Only when asked for: unlike CRIU it goes among the system's own packages.
#
# shellcheck shell=bash

readonly BROWSER_DEADLINE=600 # seconds to fetch and unpack some 400 MB

# browser_wanted ASKED: by the command line, or where no test may be skipped.
browser_wanted() { (($1)) || [[ ${DEFROST_REQUIRE_SYSTEM:-} == 1 ]]; }

# Sets BROWSER to the first that starts.
find_browser() {
    local candidate
    for candidate in "${DEFROST_BROWSER:-}" chromium chromium-browser google-chrome; do
        if [[ -n $candidate ]] && timeout 30 "$candidate" --version >/dev/null 2>&1; then
            BROWSER=$(type -P "$candidate")
            return 0
        fi
    done
    BROWSER=''
    return 1
}

# A source of packages that cannot be reached may be another's. The fonts are so that text in a screenshot can be read.
install_browser() {
    if ((EUID != 0)) || ! have apt-get; then
        say 'no browser was found, and this script installs one only as root on Debian'
        hint 'install chromium, or set DEFROST_BROWSER to the path of one'
        return 3
    fi
    say 'installing chromium from Debian'
    make_work
    if DEBIAN_FRONTEND=noninteractive timeout --foreground -k 5 "$BROWSER_DEADLINE" \
        sh -c 'apt-get -qy update; apt-get -qy -o DPkg::Lock::Timeout=300 install --no-install-recommends chromium fonts-dejavu-core' \
        </dev/null >"$WORK/browser.log" 2>&1; then
        return 0
    fi
    say "apt could not install chromium (deadline $BROWSER_DEADLINE s):"
    grep -E '^(E|W|Err)' "$WORK/browser.log" | tail -n 5 >&2 || true
    hint 'check the network, apt sources and free space, and run again'
    return 1
}

obtain_browser() {
    if ! find_browser; then
        install_browser || return
        find_browser || { say 'the installed chromium does not start'; return 3; }
    fi
    note "browser at $BROWSER"
}
