# Removes our probes, and the directories that held nothing else. Set by the controller above this text: N (the nonce
# that begins each answer), PLACES (directories that belong to everybody). A probe that runs goes on: its file has a
# name no longer, and that is all.

say() { printf '\n%s %s\n' "$N" "$*"; }

# Only in a directory of ours: what lies behind a link, or belongs to another user, is not touched.
clear_out() {
  [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] || return
  cd -P "$1" 2>/dev/null || return
  for file in gpufleet-probe-* .upload-*; do
    [ -f "$file" ] && [ ! -L "$file" ] && [ -O "$file" ] || continue
    if rm -f "./$file" 2>/dev/null; then say removed "$1/$file"; else say kept "$1/$file"; fi
  done
  cd /
  rmdir "$1" 2>/dev/null
}

main() {
  case ${XDG_CACHE_HOME:-} in
    /*) clear_out "$XDG_CACHE_HOME/gpufleet" ;;
    *) clear_out "${HOME:-/nonexistent}/.cache/gpufleet" ;;
  esac
  clear_out "${XDG_RUNTIME_DIR:-/nonexistent}/gpufleet"
  for place in $PLACES; do
    for folder in "$place"/gpufleet-????????; do clear_out "$folder"; done
  done
  say done
}
main
