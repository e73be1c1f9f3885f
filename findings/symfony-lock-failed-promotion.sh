#!/usr/bin/env bash
# Symfony Lock: a reader who asks a FlockStore to write, and is refused, has lost his read lock, and isAcquired() says that he has it
#
# Run:      Symfony Lock 5.4.53 with PHP 8.2.36 and phpredis 5.3.7 (Debian 12), Redis 8.2.3: two have a lock for reading. One of them asks
#           acquire(), without waiting, to make it one for writing. The other one releases his, and somebody else asks to write. The
#           same with a RedisStore and a FlockStore.
# Guess:    the promotion is refused because of the other reader, and changes nothing: whoever asked still reads, and nobody else writes.
# Seen:     with Redis it is so. With flock the refusal closes the file that the read lock was on, and leaves the closed file in the lock's
#           key, which is all that isAcquired() looks at. The writer is in beside the reader, whose release() raises TypeError.
# Matters:  "try to promote, or go on reading" is what a promotion that does not wait is for. Two stores of one interface differ in what a
#           refusal costs. Whoever is refused has to have what he had before, or to be told.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
debian php8.2-cli=8.2.36-1~deb12u1 php8.2-common=8.2.36-1~deb12u1 php8.2-igbinary=3.2.13-1 php8.2-redis=5.3.7+4.3.0-3 \
	libargon2-1=0~20171227-0.3+deb12u1 php-symfony-lock=5.4.53+dfsg-0+deb12u1 php-psr-log=1.1.4-2
cat >main.php <<'END'
<?php
use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\FlockStore;
use Symfony\Component\Lock\Store\RedisStore;

spl_autoload_register(fn ($class) => require __DIR__.'/debian/usr/share/php/'.str_replace('\\', '/', $class).'.php');
$redis = new Redis();
$redis->connect('127.0.0.1', (int) $argv[1]);

foreach (['RedisStore' => new RedisStore($redis), 'FlockStore' => new FlockStore(__DIR__)] as $name => $store) {
    $say = fn ($what, $yes) => print("$name: $what: ".($yes ? 'yes' : 'no').PHP_EOL);
    $locks = new LockFactory($store);
    $one = $locks->createLock('report', 300, false);
    $other = $locks->createLock('report', 300, false);
    $say('one reads', $one->acquireRead());
    $say('another reads', $other->acquireRead());
    $say('one is promoted', $one->acquire());
    $other->release();
    $say('one believes to have a lock', $one->isAcquired());
    $say('somebody else writes', $locks->createLock('report', 300, false)->acquire());
    try {
        $one->release();
        echo "$name: one releases", PHP_EOL;
    } catch (Throwable $e) {
        echo "$name: one releases: ", get_class($e), PHP_EOL;
    }
}
END
php() {
	debian/usr/bin/php8.2 -n -d "extension_dir=$folder/debian/usr/lib/php/20220829" -d extension=igbinary -d extension=redis \
		-d display_errors=stderr "$@"
}
expect php main.php "$port" <<'END'
RedisStore: one reads: yes
RedisStore: another reads: yes
RedisStore: one is promoted: no
RedisStore: one believes to have a lock: yes
RedisStore: somebody else writes: no
RedisStore: one releases
FlockStore: one reads: yes
FlockStore: another reads: yes
FlockStore: one is promoted: no
FlockStore: one believes to have a lock: yes
FlockStore: somebody else writes: yes
FlockStore: one releases: TypeError
END
