#!/usr/bin/env bash
# Laravel: Redis::funnel("user:1") and Redis::funnel("user:11") take each other's places
#
# Run:      Laravel's illuminate/redis 8.83.26 with PHP 8.2.36 and phpredis 5.3.7 (Debian 12), Redis 8.2.3: a funnel for twenty of each user.
#           While user 11 has nine of his places, users 1 and 2 take as many as they get; and user 11, while user 1 has all of his own.
# Guess:    twenty each: a funnel is known by its name.
# Seen:     user 2 does, user 1 gets eleven, and user 11 gets eleven. A place is a key, made of the name and a number: the eleventh place of
#           "user:1" and the first one of "user:11" are both "user:111".
# Matters:  with ids in names, which is what funnels are for, strangers wait for each other, from eleven places on, and each limit is right
#           in a test with one user. What is put behind a name needs a mark that no name has there.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
debian php8.2-cli=8.2.36-1~deb12u1 php8.2-common=8.2.36-1~deb12u1 php8.2-igbinary=3.2.13-1 php8.2-redis=5.3.7+4.3.0-3 \
	libargon2-1=0~20171227-0.3+deb12u1 php8.2-mbstring=8.2.36-1~deb12u1 libonig5=6.9.8-1 \
	php-illuminate-{redis,support,collections,contracts,macroable}=8.83.26+dfsg-2
cat >main.php <<'END'
<?php
use Illuminate\Contracts\Redis\LimiterTimeoutException;
use Illuminate\Redis\Connections\PhpRedisConnection;

spl_autoload_register(function ($class) {
    foreach (['Support', 'Collections', 'Macroable'] as $folder) { // of three packages, with one namespace
        $file = __DIR__.'/debian/usr/share/php/'.str_replace(['\\', '/Support/'], ['/', "/$folder/"], $class).'.php';
        if (is_file($file)) {
            return require $file;
        }
    }
});
require __DIR__.'/debian/usr/share/php/Illuminate/Collections/helpers.php';
require __DIR__.'/debian/usr/share/php/Illuminate/Support/helpers.php';
$client = new Redis();
$client->connect('127.0.0.1', (int) $argv[1]);
$redis = new PhpRedisConnection($client);

function funnel($redis, $name)
{
    return $redis->funnel($name)->limit(20)->releaseAfter(60)->block(0);
}

/** Takes up to that many places, inside each other, and calls $then inside of all of them. */
function take($redis, $name, $many, $then, $taken = 0)
{
    return $many == $taken ? $then($taken) : funnel($redis, $name)->then(
        fn () => take($redis, $name, $many, $then, $taken + 1),
        fn () => $then($taken)
    );
}

$report = fn ($text) => fn ($places) => print("$text: $places places".PHP_EOL);
take($redis, 'user:1', 20, $report('user 1 alone'));
take($redis, 'user:11', 9, function () use ($redis, $report) {
    take($redis, 'user:1', 20, $report('user 1, while user 11 has nine'));
    take($redis, 'user:2', 20, $report('user 2, while user 11 has nine'));
});
take($redis, 'user:1', 20, function () use ($redis, $report) {
    take($redis, 'user:11', 20, $report('user 11, while user 1 has twenty'));
});
END
php() {
	debian/usr/bin/php8.2 -n -d "extension_dir=$folder/debian/usr/lib/php/20220829" -d extension=igbinary -d extension=mbstring -d extension=redis \
		-d display_errors=stderr "$@"
}
expect php main.php "$port" <<'END'
user 1 alone: 20 places
user 1, while user 11 has nine: 11 places
user 2, while user 11 has nine: 20 places
user 11, while user 1 has twenty: 11 places
END
