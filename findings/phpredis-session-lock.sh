#!/usr/bin/env bash
# phpredis: with session locking, a visitor's second request does not wait for the first; it goes on without the lock, and stores nothing
#
# Run:      PHP 8.2.36 with phpredis 5.3.7 (Debian 12), Redis 8.2.3: a request that takes four seconds, and another one of the same session
#           two seconds later, each of which adds to the session. With PHP's own session files; in Redis, in Redis with
#           redis.session.locking_enabled=1, and with lock_retries=-1, too.
# Guess:    with the lock as with files, which PHP locks: the second waits in session_start() until the first has ended, and both are stored.
# Seen:     session_start() of the second returns with a notice, and its code runs on a copy. session_write_close() warns that the save_path
#           may not be correct, and stores nothing. Ten retries with 2,000 microseconds between them are what the module has by itself.
# Matters:  what is stored is the same with the lock and without it, and the second request's code has run in both. A lock that is not
#           obtained must not be a notice; lock_retries=-1 makes this one wait.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
debian php8.2-cli=8.2.36-1~deb12u1 php8.2-common=8.2.36-1~deb12u1 php8.2-igbinary=3.2.13-1 php8.2-redis=5.3.7+4.3.0-3 libargon2-1=0~20171227-0.3+deb12u1
cat >request.php <<'END'
<?php
session_id('visitor');
session_start();
$_SESSION['changes'][] = $argv[1];
usleep($argv[2] * 1000);
session_write_close();
END
cat >read.php <<'END'
<?php
session_id('visitor');
session_start();
echo implode(' and ', $_SESSION['changes']), PHP_EOL;
END

php() {
	debian/usr/bin/php8.2 -n -d "extension_dir=$folder/debian/usr/lib/php/20220829" -d extension=igbinary -d extension=redis \
		-d session.use_cookies=0 -d session.cache_limiter= -d display_errors=stderr "$@"
}

# requests NAME OPTION… has two requests in one session, the second one begins during the first.
requests() {
	php "${@:2}" request.php first 4000 2>>first.log &
	sleep 2
	php "${@:2}" request.php second 0 2>>second.log
	wait "$!"
	echo "$1: $(php "${@:2}" read.php)"
}

main() {
	mkdir sessions
	requests "files" -d session.save_handler=files -d "session.save_path=$folder/sessions"
	ask FLUSHALL >/dev/null
	local redis=(-d session.save_handler=redis -d "session.save_path=tcp://127.0.0.1:$port")
	requests "Redis" "${redis[@]}"
	ask FLUSHALL >/dev/null
	requests "Redis, locking_enabled" "${redis[@]}" -d redis.session.locking_enabled=1
	ask FLUSHALL >/dev/null
	requests "Redis, locking_enabled, lock_retries=-1" "${redis[@]}" -d redis.session.locking_enabled=1 -d redis.session.lock_retries=-1
	grep -c 'Acquire of session lock was not successful' second.log
}
expect main <<'END'
files: first and second
Redis: first
Redis, locking_enabled: first
Redis, locking_enabled, lock_retries=-1: first and second
1
END
