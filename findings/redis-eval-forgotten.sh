#!/usr/bin/env bash
# Redis and Valkey: a script sent by EVAL is forgotten after 500 others
#
# Run:      Redis 6.2.14 and 8.2.3, Valkey 8.1.8 and 9.1.2 (PyPI): a script by EVAL and one by SCRIPT LOAD, 600 other scripts by EVAL,
#           then both by EVALSHA.
# Guess:    scripts stay until SCRIPT FLUSH or a restart, as it has been for ten years.
# Seen:     the newer servers keep the last 500 that came by EVAL. What SCRIPT LOAD brought stays.
# Matters:  one neighbour that writes values into its scripts makes EVALSHA fail (NOSCRIPT) for all that share the server. A library that
#           repeats with EVAL pays a round trip; one that sends EVALSHA in a pipeline or a MULTI, after an EVAL that worked, breaks.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

main() {
	local name evaluated loaded
	for name in redis-6.2 redis-8.2 valkey-8.1 valkey-9.1; do
		start_server "$name"
		evaluated=$(printf 'return 1' | sha1sum | cut -d ' ' -f 1)
		ask EVAL 'return 1' 0 >/dev/null
		loaded=$(ask SCRIPT LOAD 'return 2')
		seq 1001 1600 | sed 's/.*/EVAL "return &" 0/' | ask >/dev/null
		echo "$name: by EVAL: $(ask EVALSHA "$evaluated" 0 2>&1 | grep -o -e NOSCRIPT -e '^1$'), by SCRIPT LOAD: $(ask EVALSHA "$loaded" 0)"
	done
}
expect main <<'END'
redis-6.2: by EVAL: 1, by SCRIPT LOAD: 2
redis-8.2: by EVAL: NOSCRIPT, by SCRIPT LOAD: 2
valkey-8.1: by EVAL: NOSCRIPT, by SCRIPT LOAD: 2
valkey-9.1: by EVAL: NOSCRIPT, by SCRIPT LOAD: 2
END
