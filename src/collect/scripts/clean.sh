# Removes uploaded probes, and their directories if these are empty afterwards. The controller sets: N (the nonce that
# begins each answer), PLACES (world-writable directories). Running probes continue, since only their name is removed.

say() { printf '\n%s %s\n' "$N" "$*"; }

# Skips symbolic links and directories of other users.
clear_out() {
  [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] || return
  cd -P "$1" 2>/dev/null || return
  for file in gpufleet-probe-[0-9]*-???????????????? .upload-????????????????????????????????; do
    case $file in *[!0-9A-Za-z.+-]*) continue ;; esac
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
