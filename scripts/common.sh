# shellcheck shell=bash
# Functions that the scripts share; sourced, not run.
set -euo pipefail

ROOT="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
PYTHON="${FLOATER_PYTHON:-$ROOT/.venv/bin/python}"
DRY_RUN="${DRY_RUN:-0}"

# Prints the help of a script: the comment at its head.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

# Prints a message with the time of day, on stderr.
say() { printf '[%(%H:%M:%S)T] %s\n' -1 "$*" >&2; }

# die SENTENCE: prints SENTENCE on stderr and exits with 1. A wrong command line exits with 2 instead.
die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# has PYTHON PACKAGES...: succeeds if PYTHON has the packages. It does not import them, which would take seconds.
has() {
    "$1" -c 'import sys; from importlib.util import find_spec; sys.exit(None in map(find_spec, sys.argv[1:]))' "${@:2}" 2>/dev/null
}

dry() { [[ $DRY_RUN == 1 ]]; }

# run COMMAND...: prints a command, quoted for the shell, and runs it. A dry run only prints it, on stdout.
run() {
    local words
    printf -v words '%q ' "$@"
    if dry; then printf '%s\n' "${words% }" && return; fi
    say "+ ${words% }"
    stoppable "$@"
}

# stoppable COMMAND...: runs a command. If a signal stops the script, the command gets a SIGTERM and may save first.
# Then the script exits with 143. Bash by itself would leave the command running.
stoppable() {
    local child status=0
    "$@" &
    child=$!
    # SIGINT is passed on as SIGTERM, because a command started with & ignores SIGINT.
    trap 'kill -TERM "$child" || true; wait "$child" || true; say "Told to stop: run the same command to go on."; exit 143' \
        TERM INT HUP
    wait "$child" || status=$?
    trap - TERM INT HUP
    return "$status"
}

# Makes sure that PYTHON has fairseq and this plugin, once for a script and the scripts that it calls. Then Python
# imports the package of this clone, not another copy that is installed or lies in the working directory.
ensure_setup() {
    local root
    if [[ ${FLOATER_SET_UP:-} != "$PYTHON" ]]; then
        if dry; then
            has "$PYTHON" fairseq_floater || die "Run scripts/setup.sh first: help, lists and dry runs install nothing."
        else
            bash "$ROOT/scripts/setup.sh" || exit $?
        fi
        export FLOATER_SET_UP=$PYTHON
    fi
    root=$(cd -P -- "$ROOT" && pwd)
    [[ :${PYTHONPATH:-}: == ":$root:"* ]] || export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
    export PYTHONSAFEPATH=1
}

# read_flags OPTIONS...: sets DRY_RUN=1 if an option asks for a dry run, a list, the status or the help.
read_flags() {
    local option
    for option in "$@"; do
        case $option in --dry-run | --list | --status | -h | --help) DRY_RUN=1 ;; esac
    done
}

# enter VERB OPTIONS...: replaces the script by `floater VERB OPTIONS...`.
enter() {
    read_flags "${@:2}"
    ensure_setup
    exec "$PYTHON" -m fairseq_floater "$@"
}

# prepares VERB [PART] -- OPTIONS...: sets `tool` to `floater VERB [PART]`, and `options` to OPTIONS without --dry-run.
# Then fetches the archives that `tool archives` lists. With --help, prints the help of script and tool and exits.
prepares() {
    local option archives
    tool=("$PYTHON" -m fairseq_floater)
    while [[ $1 != -- ]]; do tool+=("$1") && shift; done
    shift
    read_flags "$@"
    ensure_setup
    options=()
    for option in "$@"; do
        case $option in
        -h | --help) usage && exec "${tool[@]}" --help ;;
        --dry-run) ;;
        *) options+=("$option") ;;
        esac
    done
    archives=$("${tool[@]}" archives "${options[@]}")
    fetch_all "$archives"
}

# A retry of curl discards the bytes that the same call has fetched. So a call retries only in its first 60 seconds;
# after that, `download` resumes where the call broke off.
CURL=(curl -fL -C - --retry 10 --retry-max-time 60 --connect-timeout 30 --speed-limit 1 --speed-time 30
    --user-agent fairseq-floater --proto "=http,https,file" --proto-redir "=http,https")
if [[ ! -t 2 ]]; then CURL+=(-sS); fi

# download URL PART NAME: fetches URL into the file PART, and resumes as long as there is progress.
download() {
    local best=0 failures=0 size status
    until run "${CURL[@]}" --output "$2" --url "$1"; do
        status=$?
        size=$(stat -c %s "$2" 2>/dev/null || printf 0)
        failures=$((size > best ? 0 : failures + 1))
        best=$((size > best ? size : best))
        case $status in
        1 | 3 | 22 | 23 | 37) failures=5 ;; # a bad URL, an HTTP error, a full disk, no such file
        6) ((best > 0)) || failures=5 ;;    # no such host, or no network
        33 | 36) rm -f "$2" ;;              # the server cannot resume: start over
        esac
        ((failures < 5)) || die "$3 could not be fetched from $1 ($size bytes are kept); run the same command" \
            "to go on, or name another source: --mirror PLACE, for SCAN --from FILE."
        sleep "$failures"
    done
}

# checked PART SHA256 MD5 FILE: succeeds if PART has these checksums (-: any), and writes its SHA-256 to FILE.sha256.
checked() {
    local found
    found=$(sha256sum <"$1")
    [[ $2 == - || $2 == "${found%% *}" ]] || return 1
    [[ $3 == - ]] || md5sum --check --status <<<"$3  $1" || return 1
    printf '%s  %s\n' "${found%% *}" "${4##*/}" >"$4.sha256"
}

# fetch URL SHA256 MD5 FILE: downloads FILE, and once more if a checksum is wrong. Only a right download gets the name
# FILE. If no checksum is published (-), FILE.sha256 keeps the first download's.
fetch() {
    local url=$1 sha256=$2 md5=$3 file=$4 part=$4.part attempt
    if [[ -f $file ]] && { dry || [[ -f $file.sha256 ]]; }; then return; fi
    if dry; then run "${CURL[@]}" --output "$file" --url "$url" && return; fi
    if [[ $sha256$md5 == -- && -f $file.sha256 ]]; then read -r sha256 _ <"$file.sha256"; fi
    if [[ -f $file ]]; then # put there by hand
        if checked "$file" "$sha256" "$md5" "$file"; then return; fi
        die "$file must have the SHA-256 $sha256 and the MD5 $md5 (-: none is known), but has others;" \
            "remove it to have it fetched."
    fi
    for attempt in 1 2; do
        download "$url" "$part" "${file##*/}"
        if checked "$part" "$sha256" "$md5" "$file"; then
            sync "$part" && mv "$part" "$file" && return
            die "$file could not be written."
        fi
        mv -f "$part" "$file.wrong"
        say "${file##*/} has the wrong checksum: set aside as $file.wrong (attempt $attempt of 2)."
    done
    die "${file##*/} from $url must have the SHA-256 $sha256 and the MD5 $md5 (-: none is known), but has others;" \
        "try another source."
}

# fetch_all LIST: fetches each line "URL SHA256 MD5 FILE" of LIST, while a lock keeps others out of the folder above.
fetch_all() {
    local url sha256 md5 file folder
    if [[ -z $1 ]]; then return; fi
    if ! dry; then
        read -r _ _ _ folder <<<"$1"
        folder=${folder%/*}
        mkdir -p "$folder" 2>/dev/null || die "The folder $folder cannot be made."
        exec 9>"${folder%/*}/.lock"
        if command -v flock >/dev/null && ! flock --nonblock 9; then
            say "Another ${0##*/} is at work on ${folder%/*}: waiting for it."
            stoppable flock 9
        fi
    fi
    while read -r url sha256 md5 file; do fetch "$url" "$sha256" "$md5" "$file"; done <<<"$1"
}
