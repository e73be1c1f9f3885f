#!/usr/bin/env bash
# twemproxy: a script with keys on two servers runs, on one of them
#
# Run:      twemproxy 0.5.0 (Debian, nutcracker) before two Redis 8.2.3: two keys that it puts on different servers, MGET of both, and a
#           script with both in KEYS.
# Guess:    an error, as in a Redis Cluster (CROSSSLOT). MGET, which twemproxy splits, shows that it knows about keys on several servers.
# Seen:     the script goes to the first key's server. There the second key does not exist: it reads nothing, and what it writes is a
#           second copy.
# Matters:  a lock's script finds the hash and not its queue, counter or channel, and goes on without. All keys of a lock need one hash
#           tag, and the pool needs the setting hash_tag, without which braces are letters.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

debian nutcracker=0.5.0+dfsg-2
start_server redis-8.2
first=$port
start_server redis-8.2
second=$port
port=$(free_port)
cat >proxy.yml <<END
locks:
  listen: 127.0.0.1:$port
  hash: fnv1a_64
  distribution: modula
  redis: true
  servers:
    - 127.0.0.1:$first:1
    - 127.0.0.1:$second:1
END
run debian/usr/sbin/nutcracker -c proxy.yml -o proxy.log -p proxy.pid -a 127.0.0.1 -s "$(free_port)"
answers "$port"

main() {
	local here there
	seq 20 | sed 's/.*/SET lock:& value/' | ask >/dev/null
	here=$(port=$first ask KEYS '*' | head -n 1)
	there=$(port=$second ask KEYS '*' | head -n 1)
	echo "MGET: $(ask MGET "$here" "$there" | xargs)"
	echo "in a script: $(ask EVAL 'return {redis.call("GET", KEYS[1]) or "nothing", redis.call("GET", KEYS[2]) or "nothing"}' 2 "$here" "$there" | xargs)"
	ask EVAL 'redis.call("SET", KEYS[2], "new")' 2 "$here" "$there" >/dev/null
	echo "after a script has set the second: $(ask MGET "$here" "$there" | xargs)"
}
expect main <<'END'
MGET: value value
in a script: value nothing
after a script has set the second: value value
END
