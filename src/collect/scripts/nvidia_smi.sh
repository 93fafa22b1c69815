# Answers requests by running nvidia-smi. The controller sets: N (the nonce that begins each answer), FULL and BASIC (field
# lists; an old nvidia-smi rejects a list with an unknown field). There is one request per line: `echo ID` or `sample`.
# The script exits at the end of its input.

NL='
'

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
  say end
}

query() { nvidia-smi "$1" --format=csv,noheader,nounits </dev/null; }

sample() {
  say gpus
  query "--query-gpu=$FULL" 2>&1
  code=$?
  if [ "$code" = 2 ] && [ "$FULL" != "$BASIC" ]; then
    FULL=$BASIC
    say gpus
    query "--query-gpu=$FULL" 2>&1
    code=$?
  fi
  say status "$code"
  say apps
  apps=
  [ "$code" = 0 ] && apps=$(query --query-compute-apps=gpu_uuid,pid,used_gpu_memory 2>/dev/null)
  echo "$apps"
  say processes
  pids=
  IFS=$NL
  for app in $apps; do
    pid=${app#*, }
    pid=${pid%%,*}
    case $pid in
      '' | *[!0-9]*) continue ;;
    esac
    pids=$pids,$pid
    if read -r line 2>/dev/null <"/proc/$pid/stat"; then echo "$line"; fi
  done 2>/dev/null
  IFS=$SPACE
  say users
  [ -n "$pids" ] && ps -ww -o pid= -o uid= -o user:32= -o args= -p "${pids#,}" 2>/dev/null
  say host
  for file in /proc/stat /proc/loadavg /proc/uptime; do
    if read -r line <"$file"; then echo "$file $line"; fi
  done
  while read -r key value _; do
    case $key in
      MemTotal: | MemAvailable: | SwapTotal: | SwapFree:) echo "$key $value" ;;
    esac
  done </proc/meminfo
  say end
}

main() {
  SPACE=$IFS
  set -f
  hello
  while read -r word id; do
    case $word in
      echo) say echo "$id" ;;
      sample) sample ;;
    esac
  done
}
main
