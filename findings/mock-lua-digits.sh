#!/usr/bin/env bash
# miniredis, jedis-mock: their Lua keeps digits that Redis drops
#
# Run:      Redis 8.2.3, miniredis 2.40.0 (Go), jedis-mock 1.1.11 (Maven): in a script, a time in microseconds as an argument of SET, and
#           joined to a string.
# Guess:    the same number, twice. Sixteen digits fit a double, in which Lua 5.1 counts.
# Seen:     passed as a number Redis keeps them all. Joined with .. or by tostring it has Lua's fourteen digits: 1.7642640001235e+15. The
#           mocks keep them all both ways.
# Matters:  an owner or a token that a script builds from a time is unique in the tests, and in production the same for all within 100 µs;
#           where a number is wanted it is an error.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
redis=$port
start_miniredis
mini=$port
jars com.github.fppt:jedis-mock:1.1.11
cat >Main.java <<'END'
class Main {
    public static void main(String[] args) throws Exception {
        com.github.fppt.jedismock.RedisServer.newRedisServer(Integer.parseInt(args[0])).start();
        Thread.currentThread().join();
    }
}
END
javac -cp 'jars/*' Main.java
jedis=$(free_port)
run java -cp 'jars/*:.' Main "$jedis"

answers "$jedis"

main() {
	local script
	for port in "$redis" "$mini" "$jedis"; do
		for script in '1764264000123456' '1764264000123456 .. ""'; do
			ask EVAL "redis.call('SET', KEYS[1], $script) return redis.call('GET', KEYS[1])" 1 time
		done
	done | xargs -n 2
}
expect main <<'END'
1764264000123456 1.7642640001235e+15
1764264000123456 1764264000123456
1764264000123456 1764264000123456
END
