#!/usr/bin/env bash
# miniredis: JSON's null is true in Redis' Lua, and false in its own
#
# Run:      Redis 8.2.3, miniredis 2.40.0 (Go): a script that takes a lock unless the state in JSON has an owner, with an owner, without
#           one, and with null.
# Guess:    the same three answers. Both have cjson, and null becomes nil, which is false.
# Seen:     Redis' cjson decodes null as a value of its own, cjson.null, that is neither nil nor false. miniredis decodes it as nil.
# Matters:  what marshals a nil pointer or an Option writes null. The test finds the lock free, in production it is never free again.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redis=$port
start_miniredis
mini=$port

# shellcheck disable=SC2016
script='if cjson.decode(ARGV[1]).owner then return "taken" else return "free" end'

main() {
	local state
	for port in "$redis" "$mini"; do
		for state in '{"owner":"me"}' '{}' '{"owner":null}'; do
			echo "$state: $(ask EVAL "$script" 0 "$state")"
		done
	done
}
expect main <<'END'
{"owner":"me"}: taken
{}: free
{"owner":null}: taken
{"owner":"me"}: taken
{}: free
{"owner":null}: free
END
