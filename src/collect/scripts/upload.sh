# Finds or receives the probe, verifies it, and executes it. `main` is on the last line, so that the shell reads the whole
# script before it runs anything. The controller removes comments before it sends the script.
#
# The controller sets: N (the nonce that begins each answer), NAME, SHA and SIZE of the probe, PLACES (world-writable
# directories, /tmp first), and the function `become`, which reports the path $1 and executes the other arguments.

NL='
'

say() { printf '\n%s %s\n' "$N" "$*"; }

# No probe can run here: reports why, and leaves a shell for the nvidia-smi script.
give_up() { cd /; say fail "$@"; exec /bin/sh; }

whole() {
  sum=$(sha256sum <"$1" 2>/dev/null)
  [ "${sum%% *}" = "$SHA" ]
}

# Creates $1 if necessary and enters it; D is its real path. Fails with the reason in WHY unless only this user can write
# to it. Everything after that uses the current directory and not $D: a user who may rename a directory above it, such as
# another member of a group, can put another directory at that path, but cannot change the current one.
enter() {
  case $1 in
    *"$NL"*) WHY='a line break in its name'; return 1 ;;
    /*) ;;
    *) WHY='not an absolute path'; return 1 ;;
  esac
  if [ -L "$1" ]; then WHY='it is a symbolic link'; return 1; fi
  if [ ! -d "$1" ]; then
    WHY=$(mkdir -p "$1" 2>&1) || { WHY=${WHY##*: }; return 1; }
  fi
  cd -P "$1" 2>/dev/null || { WHY='it cannot be entered'; return 1; }
  D=$PWD
  # After a swap between the test for a link and `cd`.
  [ "${D##*/}" = "${1##*/}" ] || { WHY='it is a symbolic link'; return 1; }
  [ -O . ] || { WHY='it belongs to another user'; return 1; }
  above=$D
  set -- "$D"
  while [ -n "$above" ]; do above=${above%/*}; set -- "$@" "${above:-/}"; done
  listing=$(ls -ldn . "$@" 2>/dev/null) || { WHY='the directories above it cannot be listed'; return 1; }
  # The list is sorted by name, so the current directory is first.
  set -- ${listing%%"$NL"*}
  mode=$1 user=$3
  IFS=$NL
  set -- ${listing#*"$NL"}
  IFS=$SPACE
  for line in "$@"; do
    set -- $line
    [ "$3" = 0 ] || [ "$3" = "$user" ] || { WHY="/${line#* /} belongs to another user"; return 1; }
    case $1 in
      ?????????[tT]*) ;;
      ????????w*) WHY="everybody may write to /${line#* /}"; return 1 ;;
      # `+` is an access control list, whose mask is shown in place of the mode of the group.
      ?????w????+*) WHY="an access control list lets others write to /${line#* /}"; return 1 ;;
      # A group with the id of the owner is a user private group.
      ?????w*) [ "$3" = "$4" ] || { WHY="a group may write to /${line#* /}"; return 1; } ;;
    esac
  done
  # This mode also disables the entries of an access control list.
  case $mode in
    drwx------*) ;;
    *) WHY=$(chmod 700 . 2>&1) || { WHY=${WHY##*: }; return 1; } ;;
  esac
}

# Removes all other probes except the newest, and what interrupted uploads left.
prune() {
  set +f
  set -- gpufleet-probe-[0-9]*-????????????????
  set -f
  newest=
  for old in "$@"; do
    shift
    case $old in "$NAME" | *[!0-9A-Za-z.+-]*) continue ;; esac
    [ -f "$old" ] && [ ! -L "$old" ] && [ -O "$old" ] || continue
    if [ -z "$newest" ]; then
      newest=$old
    elif [ "$old" -nt "$newest" ]; then
      set -- "$@" "$newest"
      newest=$old
    else
      set -- "$@" "$old"
    fi
  done
  [ $# = 0 ] || rm -f "$@"
  find . -maxdepth 1 -type f -name '.upload-????????????????????????????????' -mmin +60 -exec rm -f {} + 2>/dev/null
}

# Receives the probe into the current directory. It gets its final name only after verification.
receive() {
  # Detects a full disk before the upload. A quota shows itself only on writing.
  free=$(df -Pk . 2>/dev/null)
  set -- ${free##*"$NL"}
  case ${4:-} in
    '' | *[!0-9]*) ;;
    *) [ "$4" -gt $((SIZE / 1024)) ] || { WHY='No space left on device'; return 1; } ;;
  esac
  new=.upload-$N
  WHY=$( (set -C; : >"$new") 2>&1 ) || { WHY=${WHY##*: }; return 1; }
  say need
  # Reads all bytes even if they do not fit, so that the shell does not execute them.
  WHY=$(head -c "$SIZE" | { cat 2>&1 >"$new" || cat >/dev/null; })
  if ! whole "$new"; then
    rm -f "$new"
    [ -n "$WHY" ] || { say fail damaged; exit 1; }
    WHY=${WHY##*: }
    return 1
  fi
  chmod 700 "$new"
  ln "$new" "$NAME" 2>/dev/null || mv -f "$new" "$NAME" 2>/dev/null
  rm -f "$new"
  prune
  [ -f "$NAME" ] && [ ! -L "$NAME" ] || { WHY="$NAME cannot be put there"; return 1; }
  # Detects a noexec file system that `test -x` does not see.
  "./$NAME" --version </dev/null >/dev/null 2>&1
  code=$?
  case $code in
    126) WHY=$FORBIDDEN; return 1 ;;
    127) give_up loader ;;
    0) ;;
    *) give_up start "$code" ;;
  esac
}

# Executes the probe from $1, or returns after reporting why that failed. The `exec` of bash would turn ./$NAME into an
# absolute path, so `env` executes it.
attempt() {
  say try "$1"
  if enter "$1"; then
    if [ -f "$NAME" ] && [ ! -L "$NAME" ] && [ -O "$NAME" ] && whole "$NAME"; then
      [ -x "$NAME" ] && become "$D/$NAME" env "./$NAME"
      WHY=$FORBIDDEN
    elif receive; then
      [ -x "$NAME" ] && become "$D/$NAME" env "./$NAME"
      WHY=$FORBIDDEN
    fi
  fi
  cd /
  say skip "$1: $WHY"
}

# Like `attempt`, in a private directory within the world-writable $1: an existing one as named by mktemp, or a new one.
attempt_within() {
  set +f
  for mine in "$1"/gpufleet-????????; do
    set -f
    if [ -d "$mine" ] && [ ! -L "$mine" ] && [ -O "$mine" ]; then attempt "$mine"; return; fi
  done
  set -f
  mine=$(mktemp -d "$1/gpufleet-XXXXXXXX" 2>&1) || { say skip "$1: ${mine##*: }"; return; }
  attempt "$mine"
}

main() {
  FORBIDDEN='programs may not be run there'
  SPACE=$IFS
  set -f
  for tool in sha256sum env head cat ls mkdir chmod ln rm; do
    command -v "$tool" >/dev/null || give_up tool "$tool"
  done
  case ${XDG_CACHE_HOME:-} in
    /*) attempt "$XDG_CACHE_HOME/gpufleet" ;;
    *) case ${HOME:-} in
      /*) attempt "$HOME/.cache/gpufleet" ;;
      *) say skip '~/.cache/gpufleet: HOME is not set' ;;
    esac ;;
  esac
  if [ -d "${XDG_RUNTIME_DIR:-/nonexistent}" ]; then attempt "$XDG_RUNTIME_DIR/gpufleet"; fi
  for place in $PLACES; do attempt_within "$place"; done
  give_up directory
}
main
