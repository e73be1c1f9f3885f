#!/usr/bin/env bash
# Laravel: where the lock that guards a cached value has the value's name, the lock's token becomes the value, and nothing is made
#
# Run:      Laravel's illuminate/cache and illuminate/redis 8.83.26 with PHP 8.2.36 and phpredis 5.3.7 (Debian 12), Redis 8.2.3: one of many
#           is to make a report, Cache::lock("report", 60)->get(...) around Cache::remember("report", 600, ...). With a lock "report-lock"
#           and with "report"; in the array store, which is for tests, in the file store, in Redis, and in Redis with a lock connection of
#           its own, to another database. Then the lock while there is a value.
# Guess:    the report is made once in each. Locks and values are two things that may have the same name, as in the array store.
# Seen:     in the file store, and in Redis on one connection, they are one entry. remember() finds the lock, and takes its random owner
#           for the report; in Redis, where that is not serialized as values are, it is false, with a notice. While there is a value,
#           nobody gets the lock, and forceRelease() of the lock removes the value.
# Matters:  tests pass, and then callers get sixteen random letters for a report. Locks that share a store with data need names that
#           no data has, and a double for tests has to share what the real store shares.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
debian php8.2-cli=8.2.36-1~deb12u1 php8.2-common=8.2.36-1~deb12u1 php8.2-igbinary=3.2.13-1 php8.2-redis=5.3.7+4.3.0-3 \
	libargon2-1=0~20171227-0.3+deb12u1 php8.2-mbstring=8.2.36-1~deb12u1 libonig5=6.9.8-1 php-psr-simple-cache=1.0.1-1 \
	php-nesbot-carbon=2.65.0-1+deb12u1 php-symfony-translation=5.4.53+dfsg-0+deb12u1 php-symfony-translation-contracts=2.5.5-0+deb12u1 \
	php-illuminate-{cache,redis,filesystem,support,collections,contracts,macroable}=8.83.26+dfsg-2
cat >main.php <<'END'
<?php
use Illuminate\Cache\ArrayStore;
use Illuminate\Cache\FileStore;
use Illuminate\Cache\RedisStore;
use Illuminate\Cache\Repository;
use Illuminate\Contracts\Redis\Factory;
use Illuminate\Filesystem\Filesystem;
use Illuminate\Redis\Connections\PhpRedisConnection;

spl_autoload_register(function ($class) {
    foreach (['Support', 'Collections', 'Macroable'] as $folder) { // of three packages, with one namespace
        $file = __DIR__.'/debian/usr/share/php/'.str_replace(['\\', '/Support/'], ['/', "/$folder/"], $class).'.php';
        if (is_file($file)) {
            return require $file;
        }
    }
});
foreach (['Collections', 'Support'] as $folder) {
    require __DIR__."/debian/usr/share/php/Illuminate/$folder/helpers.php";
}
$redis = new class((int) $argv[1]) implements Factory {
    private $connections = [];

    public function __construct(private $port)
    {
    }

    public function connection($name = null)
    {
        if (! isset($this->connections[$name])) {
            $client = new Redis();
            $client->connect('127.0.0.1', $this->port);
            $client->select('locks' == $name ? 1 : 0);
            $this->connections[$name] = new PhpRedisConnection($client);
        }

        return $this->connections[$name];
    }
};
$stores = [
    'ArrayStore' => new ArrayStore(true),
    'FileStore' => new FileStore(new Filesystem(), __DIR__.'/cache'),
    'RedisStore' => new RedisStore($redis),
    'RedisStore with two connections' => (new RedisStore($redis))->setLockConnection('locks'),
];
$made = 0;
$make = function () use (&$made) {
    $made++;

    return 'the report';
};

/** Prints a value, with an owner as such, since that is random. */
function shown($value)
{
    return is_string($value) && preg_match('/^\w{16}$/', $value) ? 'sixteen random letters' : var_export($value, true);
}

foreach ($stores as $title => $store) {
    $cache = new Repository($store);
    foreach (['report-lock', 'report'] as $name) {
        $made = 0;
        $value = $cache->lock($name, 60)->get(fn () => $cache->remember('report', 600, $make));
        echo "$title, $name: made: $made, got: ", shown($value), PHP_EOL;

        $cache->put('report', 'the report', 600);
        echo '  the lock while there is a value: ', shown($cache->lock($name, 60)->get());
        $cache->lock($name)->forceRelease();
        echo ', the value after forceRelease(): ', shown($cache->get('report')), PHP_EOL;
        $cache->forget('report');
    }
}
END
php() {
	debian/usr/bin/php8.2 -n -d "extension_dir=$folder/debian/usr/lib/php/20220829" -d extension=igbinary -d extension=mbstring -d extension=redis \
		-d display_errors=stderr "$@"
}
expect php main.php "$port" <<'END'
ArrayStore, report-lock: made: 1, got: 'the report'
  the lock while there is a value: true, the value after forceRelease(): 'the report'
ArrayStore, report: made: 1, got: 'the report'
  the lock while there is a value: true, the value after forceRelease(): 'the report'
FileStore, report-lock: made: 1, got: 'the report'
  the lock while there is a value: true, the value after forceRelease(): 'the report'
FileStore, report: made: 0, got: sixteen random letters
  the lock while there is a value: false, the value after forceRelease(): NULL
RedisStore, report-lock: made: 1, got: 'the report'
  the lock while there is a value: true, the value after forceRelease(): 'the report'
RedisStore, report: made: 0, got: false
  the lock while there is a value: false, the value after forceRelease(): NULL
RedisStore with two connections, report-lock: made: 1, got: 'the report'
  the lock while there is a value: true, the value after forceRelease(): 'the report'
RedisStore with two connections, report: made: 1, got: 'the report'
  the lock while there is a value: true, the value after forceRelease(): 'the report'
END
