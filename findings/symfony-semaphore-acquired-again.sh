#!/usr/bin/env bash
# Symfony Semaphore: acquire() of a place that one has says yes, starts its lifetime anew, and extends nothing; then two have the one place
#
# Run:      Symfony Semaphore and Lock 5.4.53 with PHP 8.2.36 and phpredis 5.3.7 (Debian 12), Redis 8.2.3: a semaphore of one place, and a
#           lock, for ten seconds. Its holder asks again after four seconds, and after eleven somebody else asks. With acquire() of a lock, with
#           acquire() of a semaphore, and with refresh() of one.
# Guess:    the holder has it for ten seconds from the second request on. With a lock acquire() renews, and a semaphore is built like one.
# Seen:     of a semaphore, acquire() returns true, and getRemainingLifetime() starts from ten again, in the object alone: in Redis the place
#           keeps its old end. After eleven seconds somebody else has it, and the holder's isExpired() says false. refresh() does renew.
# Matters:  a loop that acquires before each step, right with a lock, works without its place from the first lease on, and its own
#           clock says otherwise. What a client tells about its lease has to be what the server agreed to.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
debian php8.2-cli=8.2.36-1~deb12u1 php8.2-common=8.2.36-1~deb12u1 php8.2-igbinary=3.2.13-1 php8.2-redis=5.3.7+4.3.0-3 \
	libargon2-1=0~20171227-0.3+deb12u1 php-symfony-{lock,semaphore}=5.4.53+dfsg-0+deb12u1 php-psr-log=1.1.4-2
cat >main.php <<'END'
<?php
use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\RedisStore as LockStore;
use Symfony\Component\Semaphore\SemaphoreFactory;
use Symfony\Component\Semaphore\Store\RedisStore as SemaphoreStore;

spl_autoload_register(fn ($class) => require __DIR__.'/debian/usr/share/php/'.str_replace('\\', '/', $class).'.php');
$redis = new Redis();
$redis->connect('127.0.0.1', (int) $argv[1]);
$locks = new LockFactory(new LockStore($redis));
$semaphores = new SemaphoreFactory(new SemaphoreStore($redis));
$pairs = [
    'lock, acquire()' => [$locks->createLock('one', 10, false), $locks->createLock('one', 10, false)],
    'semaphore, acquire()' => [$semaphores->createSemaphore('two', 1, 1, 10, false), $semaphores->createSemaphore('two', 1, 1, 10, false)],
    'semaphore, refresh()' => [$semaphores->createSemaphore('three', 1, 1, 10, false), $semaphores->createSemaphore('three', 1, 1, 10, false)],
];
$text = fn ($yes) => $yes ? 'yes' : 'no';

usleep((int) ((1.1 - fmod(microtime(true), 1)) * 1e6)); // the semaphore's store has whole seconds
foreach ($pairs as $how => [$one]) {
    echo "$how: ", $text($one->acquire()), PHP_EOL;
}
sleep(4);
foreach ($pairs as $how => [$one]) {
    $again = 'semaphore, refresh()' == $how ? $one->refresh() ?? true : $one->acquire();
    echo "$how: again: ", $text($again), ', whole seconds left: ', floor($one->getRemainingLifetime() + 0.5), PHP_EOL;
}
sleep(7);
foreach ($pairs as $how => [$one, $other]) {
    $expired = $one->isExpired();
    echo "$how: the holder's has expired: ", $text($expired), ', somebody else gets it: ', $text($other->acquire()), PHP_EOL;
}
END
php() {
	debian/usr/bin/php8.2 -n -d "extension_dir=$folder/debian/usr/lib/php/20220829" -d extension=igbinary -d extension=redis \
		-d display_errors=stderr "$@"
}
expect php main.php "$port" <<'END'
lock, acquire(): yes
semaphore, acquire(): yes
semaphore, refresh(): yes
lock, acquire(): again: yes, whole seconds left: 10
semaphore, acquire(): again: yes, whole seconds left: 10
semaphore, refresh(): again: yes, whole seconds left: 10
lock, acquire(): the holder's has expired: no, somebody else gets it: no
semaphore, acquire(): the holder's has expired: no, somebody else gets it: yes
semaphore, refresh(): the holder's has expired: no, somebody else gets it: no
END
