# Answers requests by running nvidia-smi. The controller sets N (the nonce that begins each answer). There is one request per
# line: `echo ID`, `host`, `gpus FIELDS`, `processes PIDS` or `stop`. Programs run in the background, so that the script
# answers while one of them hangs in the driver. The controller requests the next one after the answer `end`, or `gone` after
# `stop`. The script exits at the end of its input.

say() { printf '\n%s %s\n' "$N" "$*"; }

hello() {
  say hello
  read -r boot </proc/sys/kernel/random/boot_id && echo "boot_id $boot"
  set -- $(uname -nrm)
  echo "host_name $1"
  echo "kernel $2"
  echo "arch $3"
  echo "login_uid $(id -u)"
  echo "login_user $(id -un)"
  echo "cpu_count $(getconf _NPROCESSORS_ONLN)"
  set +f
  for gpu in /proc/driver/nvidia/gpus/*; do
    echo "gpu ${gpu##*/}"
  done
  set -f
  say end
}

# Each line is a separate answer, because the background program writes as well.
host() {
  for file in /proc/stat /proc/loadavg /proc/uptime; do
    if read -r line <"$file"; then say host "$file $line"; fi
  done
  while read -r key value _; do
    case $key in
      MemTotal: | MemAvailable: | SwapTotal: | SwapFree:) say host "$key $value" ;;
    esac
  done </proc/meminfo
  if [ -r /proc/spl/kstat/zfs/arcstats ]; then
    while read -r key _ value; do
      case $key in
        c_min | size) say host "arc $key $value" ;;
      esac
    done </proc/spl/kstat/zfs/arcstats
  fi
  say host
}

# A signal interrupts the wait for a program, but not a program in the foreground.
query() {
  nvidia-smi "$1" --format=csv,noheader,nounits 2>&1 &
  child=$!
  wait "$child"
  code=$?
  child=
  say status "$code"
}

gpus() {
  say gpus
  query "--query-gpu=$1"
  # 2: an unknown field. The controller repeats the request without it.
  if [ "$code" != 2 ]; then
    say apps
    query --query-compute-apps=gpu_uuid,pid,used_gpu_memory
  fi
  say end
}

processes() {
  say processes
  IFS=,
  for pid in $1; do
    if read -r line 2>/dev/null <"/proc/$pid/stat"; then echo "$line"; fi
  done 2>/dev/null
  say users
  ps -ww -o pid= -o uid= -o user:32= -o args= -p "$1" 2>/dev/null &
  child=$!
  wait "$child"
  child=
  say end
}

# Runs a request in the background. The last one has answered `end` or `gone`, so that its shell ends at once.
start() {
  [ -z "$job" ] || wait "$job"
  (
    child=
    # A program that hangs in the driver may end much later.
    trap 'trap "" TERM; [ -z "$child" ] || kill -9 "$child" 2>/dev/null; wait; say gone; exit 0' TERM
    "$@"
  ) </dev/null &
  job=$!
}

# Ends the background request if it still runs: its pid may belong to another process by now.
stop() {
  if [ -n "$job" ] && read -r line <"/proc/$job/stat"; then
    case $line in
      "$job ("*") "?" $$ "*) kill "$job" ;;
    esac
  fi 2>/dev/null
}

main() {
  # The folders of nvidia-smi that are often not in PATH: NVIDIA's containers, Container-Optimized OS, GKE, Flatcar and
  # Colab, NixOS.
  for place in /usr/local/bin /usr/local/nvidia/bin /var/lib/nvidia/bin /home/kubernetes/bin/nvidia/bin /opt/bin \
    /run/opengl-driver/bin; do
    PATH=$PATH:$place
  done
  # WSL 2: the nvidia-smi of a Linux distribution does not work there.
  if [ -e /dev/dxg ]; then PATH=/usr/lib/wsl/lib:$PATH; else PATH=$PATH:/usr/lib/wsl/lib; fi
  set -f
  job=
  hello
  while read -r word argument; do
    case $word in
      echo) say echo "$argument" ;;
      host) host ;;
      gpus | processes) start "$word" "$argument" ;;
      stop) stop ;;
    esac
  done
  stop
}
main
