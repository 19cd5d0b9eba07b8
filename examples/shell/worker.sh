#!/usr/bin/env bash
# A worker for Leasehold in shell: grpcurl (https://github.com/fullstorydev/grpcurl) and bash 4.4 are
# all that it needs. It holds one job at a time; start several for more.
#
# The work runs beside this loop, in processes of its own, so that heartbeats go on, and so that it
# can be ended whatever it does: when the lease is lost or in doubt, when somebody cancels the job,
# and when the worker ends. SIGTERM: no more jobs; the one at hand may take GRACE seconds more, then
# it is given back. A second SIGTERM cuts that short. kill -9 leaves the work behind without a worker:
# that is what LEASE_NO is for.
set -uo pipefail
LC_ALL=C

address="${LEASEHOLD_ADDRESS:-127.0.0.1:7070}"
queue="${LEASEHOLD_QUEUE:-payments}"
owner="${HOSTNAME:-shell}/$$"
grace=$((${GRACE:-20} * 100))

# handle is yours. It has JOB_ID, LEASE_NO, PAYLOAD (JSON) and LAST_STAGE, may write where it is into the
# file STAGE, and prints the result as JSON, or nothing. Another exit code than 0 fails the job. Give
# LEASE_NO to whatever it changes, so that a worker which overslept its lease changes nothing.
handle() {
  [[ $PAYLOAD =~ \"seconds\":\ *([0-9.]+) ]] || { echo "no seconds in the payload" >&2; return 1; }
  sleep "${BASH_REMATCH[1]}"
  printf '{"fence": %d}' "$LEASE_NO"
}

# --- what follows is the same for all work

# All times are hundredths of a second, by a clock that nobody sets and that counts the sleep of the
# machine.
clock() {
  local up
  if read -r up _ 2>/dev/null </proc/uptime; then now="${up/./}"; else now="$(date +%s)00"; fi
}

say() { printf '%s %s\n' "$(date +%T)" "$*" >&2; }

# Files without a name, so that kill -9 leaves none behind.
for name in answer_file result_file said_file stage_file; do
  path="$(mktemp)"
  exec {fd}<>"$path"
  rm "$path"
  declare "$name=/proc/$$/fd/$fd"
done

signals=0 until=0
trap 'clock; until=$((signals++ ? now : now + grace))' TERM INT

# pause CENTISECONDS, and half of them at random, so that workers that failed together do not come
# back together; a signal ends it.
pause() {
  local heard="$signals"
  clock
  local end=$((now + $1 + RANDOM % ($1 / 2 + 1)))
  while ((now < end && signals == heard)); do
    sleep 0.1
    clock
  done
}

# field PREFIX: finds the rest of the first line of the answer that begins with PREFIX. grpcurl prints
# one field a line, and no text with a line break, so that content cannot look like a field. Lines,
# because bash takes minutes to search in one text of a megabyte.
field() {
  local line
  found=""
  for line in "${lines[@]}"; do
    if [[ ${line:0:${#1}} == "$1" ]]; then
      found="${line:${#1}}"
      [[ ${found: -1} != , ]] || found="${found:0:-1}"
      [[ ${found: -1} != '"' ]] || found="${found:0:-1}"
      return 0
    fi
  done
  return 1
}

# centis PREFIX: the same for a duration, as "5.25s".
centis() {
  field "$1" || { found=0; return; }
  local whole="${found%%[.s]*}" part="00"
  [[ $found == *.* ]] && part="${found#*.}" && part="${part%s}00"
  found=$((10#$whole * 100 + 10#${part:0:2}))
}

# payload_of finds the payload of the job, where it is JSON.
payload_of() {
  local line inside=""
  PAYLOAD=""
  for line in "${lines[@]}"; do
    if [[ ${line:0:20} == '        "payload": {' ]]; then
      inside=yes
    elif [[ -n $inside && ${line:0:19} == '          "json": "' ]]; then
      line="${line:19}"
      [[ ${line: -1} != , ]] || line="${line:0:-1}"
      # What JSON escapes, printf can undo, but for the quotation mark.
      printf -v PAYLOAD %b "$(sed 's/\\"/"/g' <<<"${line:0:-1}")"
      return
    elif [[ -n $inside && ${line:0:9} == '        }' ]]; then
      return
    fi
  done
}

# quoted TEXT: text as a JSON string.
quoted() {
  local text
  text="$(printf '%s' "$1" | sed -z 's/\\/\\\\/g; s/"/\\"/g; s/\n/\\n/g; s/\t/\\t/g' | tr '\000-\037' ' ')"
  printf '"%s"' "$text"
}

# ask METHOD CENTISECONDS REQUEST: makes one call. A signal ends a poll, no other call. The reason of
# a refusal, and how long it asks to wait, are set where it fails.
ask() {
  local limit pid
  printf -v limit '%d.%02d' $(($2 / 100)) $(($2 % 100))
  grpcurl -plaintext -max-time "$limit" -d @ "$address" "leasehold.v1.LeaseService/$1" <<<"$3" >"$answer_file" 2>&1 &
  pid=$!
  wait "$pid"
  status=$?
  while ((status > 128)) && kill -0 "$pid" 2>/dev/null; do
    [[ $1 != AcquireLease ]] || kill "$pid"
    wait "$pid"
    status=$?
  done
  mapfile -t lines <"$answer_file"
  reason="" retry=0
  ((status != 0)) || return 0
  refusal
  [[ $1 == AcquireLease && $signals -gt 0 ]] || say "$1: ${reason:-exit code $status}"
  return 1
}

# refusal reads the reason of an error and how long it asks to wait.
refusal() {
  local line
  for line in "${lines[@]}"; do
    line="${line#"${line%%[![:space:]]*}"}"
    case "$line" in
      '"reason": "'*) reason="${line:11}" reason="${reason%%\"*}" ;;
      '"retryDelay": "'*) lines=("$line") && centis '"retryDelay": "' && retry="$found" ;;
    esac
  done
}

# over tells whether the lease that was asked about is not ours any more.
over() { [[ $reason =~ ^(LEASE_SUPERSEDED|LEASE_EXPIRED|LEASE_ENDED|JOB_NOT_FOUND|INVALID_TOKEN)$ ]]; }

# final tells whether trying again, unchanged, cannot help: grpcurl's exit code is 64 + the gRPC code of
# INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED.
final() { [[ $status =~ ^(67|69|70|73|75|76)$ ]]; }

backoff() { # FAILURES FIRST MOST
  wait_for=$(($2 << ($1 > 10 ? 10 : $1)))
  ((wait_for < $3)) || wait_for="$3"
  ((wait_for > retry)) || wait_for="$retry"
}

# acquire polls until there is a lease; false at the end. It repeats a poll in the same words until it
# is answered: a lease whose answer was lost comes again, by the request id, and no other.
acquire() {
  local id="" failures=0 sent last wait='"wait": "20s",' limit=2500
  while true; do
    last="$signals"
    if ((last > 0)); then
      [[ -n $id ]] || return 1
      wait="" limit=300 # a lease that is on its way is found, and given back
    fi
    [[ -n $id ]] || id="$owner-$RANDOM$RANDOM$RANDOM-$((++polls))"
    clock
    sent="$now"
    if ask AcquireLease "$limit" \
      "{\"queues\": [\"$queue\"], \"lease_owner\": \"$owner\", $wait \"request_id\": \"$id\"}"; then
      failures=0 id=""
      if field '      "leaseToken": "'; then
        token="$found"
        centis '  "waited": "'
        renew $((sent + found)) '      '
        return 0
      fi
      clock
      ((now - sent > 100)) || pause 100 # it should have waited
    else
      ! final || id=""
      backoff "$failures" 20 1000
      ((last > 0)) || pause "$wait_for"
      failures=$((failures + 1))
    fi
    ((last == 0)) || return 1
  done
}
polls=0

# renew SINCE INDENT: notes what the answer says of the lease, which it had not said yet at SINCE.
renew() {
  local remaining
  centis "$2\"remaining\": \""
  remaining="$found"
  centis "$2\"nextHeartbeatIn\": \""
  interval="$found"
  ((interval > 0 && interval <= remaining / 2)) || interval=$((remaining / 3))
  ((interval >= 10)) || interval=10
  # The work needs time to end, and what it sent last needs time to arrive.
  end_at=$(($1 + remaining)) stop_at=$(($1 + remaining - (remaining < 3000 ? remaining / 10 : 300)))
  beat_at=$(($1 + interval))
}

# beat renews the lease. Its deadline leaves time for others before the lease ends. It sets why where
# the work must stop.
beat() {
  local limit=$((interval / 2)) sent="$now" stage=""
  ((limit >= 50)) || limit=50
  ((limit <= 500)) || limit=500
  [[ ! -s $stage_file ]] || stage=", \"stage\": $(quoted "$(head -c 128 "$stage_file")")"
  if ask Heartbeat "$limit" "{\"lease_token\": \"$token\"$stage}"; then
    renew "$sent" '  '
    ! field '  "cancelRequested": true' || why="cancelled"
  elif over; then
    why="$reason"
  else
    ! final || : >"$stage_file" # what it carried must not cost the lease
    clock
    beat_at=$((now + (retry < interval ? retry : interval) + interval / 8))
  fi
}

# work runs handle for the lease, and tells the service how it ended.
work() {
  local pid code result why=""
  field '        "jobId": "'
  JOB_ID="$found"
  field '      "leaseNo": "'
  LEASE_NO="$found"
  field '      "lastStage": "'
  LAST_STAGE="$found"
  payload_of
  STAGE="$stage_file"
  : >"$STAGE"
  export JOB_ID LEASE_NO LAST_STAGE STAGE # PAYLOAD can be larger than what a program may be given so
  if ((signals > 0)); then
    finish Release
    return
  fi
  set -m # a process group of its own, which can be ended with all that it started
  (trap - TERM INT; handle) >"$result_file" 2>"$said_file" &
  set +m
  pid=$!
  while kill -0 "$pid" 2>/dev/null && [[ -z $why ]]; do
    clock
    if ((now >= stop_at)); then
      why="not renewed in time"
    elif ((signals > 0 && now >= until)); then
      why="shutting down"
    elif ((now >= beat_at)); then
      beat
    else
      sleep 0.1
    fi
  done
  [[ -z $why ]] || stop "$pid"
  wait "$pid"
  code=$?
  if [[ -n $why ]]; then
    say "job $JOB_ID: $why"
    [[ $why =~ ^[A-Z_]+$ ]] || finish Release # what is lost is told to nobody
  elif ((code == 0)); then
    result=""
    [[ ! -s $result_file ]] || result=", \"result\": {\"json\": $(quoted "$(<"$result_file")")}"
    finish Complete "$result"
  else
    finish Fail ", \"error\": {\"code\": \"exit_$code\", \"message\": $(quoted "$(tail -c 4096 "$said_file")")}"
  fi
}

# stop ends the work, before anybody else may begin it.
stop() {
  kill -TERM -- "-$1" 2>/dev/null
  clock
  local end=$((now + 100))
  while ((now < end)) && kill -0 -- "-$1" 2>/dev/null; do
    sleep 0.1
    clock
  done
  kill -KILL -- "-$1" 2>/dev/null
}

# finish METHOD FIELDS tells the service how the lease ended, in the same words until it is answered.
# While a Complete is not answered, the lease beats on.
finish() {
  local failures=0 limit="$interval" give_up why=""
  ((limit >= 100)) || limit=100
  ((limit <= 1000)) || limit=1000
  until ask "$1" "$limit" "{\"lease_token\": \"$token\"${2:-}}"; do
    ! over || return
    if final; then
      [[ $1 != Complete || $reason == RESULT_CONFLICT ]] ||
        finish Fail ', "error": {"code": "result_refused", "message": "'"$reason"'"}'
      return
    fi
    give_up="$end_at"
    [[ $1 != Complete ]] || give_up=$((end_at + 6000)) # nobody else may have begun
    clock
    ((now < give_up)) || return
    backoff "$failures" 10 500
    pause "$wait_for"
    failures=$((failures + 1))
    clock
    [[ $1 != Complete ]] || ((now < beat_at)) || beat
  done
}

command -v grpcurl >/dev/null || { say "there is no grpcurl: run setup.sh first"; exit 1; }
say "$owner leases from $queue"
while acquire; do
  work
done
say "the worker ends"
