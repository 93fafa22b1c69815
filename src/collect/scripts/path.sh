# Executes the probe that is installed on the host. The controller sets: N (the nonce that begins each answer), PROBE (its
# path), and the function `become`, which reports the path $1 and executes the other arguments.

say() { printf '\n%s %s\n' "$N" "$*"; }

main() {
  case $PROBE in
    /*) ;;
    '~/'*) PROBE=$HOME/${PROBE#??} ;;
    *) PROBE=$PWD/$PROBE ;;
  esac
  [ -e "$PROBE" ] || { say fail missing "$PROBE"; exit 1; }
  [ -f "$PROBE" ] && [ -x "$PROBE" ] || { say fail forbidden "$PROBE"; exit 1; }
  cd /
  become "$PROBE" "$PROBE"
}
main
