#!/usr/bin/env bash
# miniredis: its Lua does not read the numbers that Redis writes
#
# Run:      Redis 8.2.3, miniredis 2.40.0 (Go): in a script, tonumber of "1000", of numbers with an exponent (1e+15 is what
#           Redis' Lua writes for 10^15), and of a string.match that finds nothing.
# Guess:    the same everywhere: a number, or nil.
# Seen:     to miniredis a text with an exponent but no point is no number. And a string.match that finds nothing returns no nil there, but
#           no value at all, at which tonumber raises an error.
# Matters:  a time or a counter that a script wrote with ".." is read again in production, and is nil in the test. The other is mended by
#           two pairs of parentheses, tonumber((string.match(…))), which works in both.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redis=$port
start_miniredis
mini=$port

main() {
	local argument
	for port in "$redis" "$mini"; do
		for argument in 1000 1000.5e3 1e3 1e+15; do
			echo "$argument: $(ask EVAL 'return tostring(tonumber(ARGV[1]))' 0 "$argument")"
		done
		for argument in 'string.match("none", "%d+")' '(string.match("none", "%d+"))'; do
			echo "$argument: $(ask EVAL "return tostring(tonumber($argument))" 0 2>&1 | grep -o -e '^nil' -e 'value expected')"
		done
	done
}
expect main <<'END'
1000: 1000
1000.5e3: 1000500
1e3: 1000
1e+15: 1e+15
string.match("none", "%d+"): nil
(string.match("none", "%d+")): nil
1000: 1000
1000.5e3: 1000500
1e3: nil
1e+15: nil
string.match("none", "%d+"): value expected
(string.match("none", "%d+")): nil
END
