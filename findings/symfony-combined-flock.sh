#!/usr/bin/env bash
# Symfony Lock: a CombinedStore of two FlockStores locks in the first folder alone, and says that it has the lock in both
#
# Run:      Symfony Lock 5.4.53 with PHP 8.2.36 and phpredis 5.3.7 (Debian 12), Redis 8.2.3: a lock is acquired in two stores at once, with
#           the UnanimousStrategy. Then others ask for it in each of the two alone. The stores are two databases of Redis; a folder and
#           Redis; two folders, as while locks move to another one, when old processes use the first, and new ones the second.
# Guess:    it is refused in each, as unanimity is that all stores have it.
# Seen:     with two folders it is given in the second one. A lock's key keeps its open file under the name of the store's class: the second
#           store finds that of the first, and takes the lock for one that it has.
# Matters:  what was to make the move safe lets old and new work at once, and two mounts that were to back each other are one. State of
#           one store has to be found by that store, not by its kind.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
debian php8.2-cli=8.2.36-1~deb12u1 php8.2-common=8.2.36-1~deb12u1 php8.2-igbinary=3.2.13-1 php8.2-redis=5.3.7+4.3.0-3 \
	libargon2-1=0~20171227-0.3+deb12u1 php-symfony-lock=5.4.53+dfsg-0+deb12u1 php-psr-log=1.1.4-2
mkdir old new
cat >main.php <<'END'
<?php
use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\CombinedStore;
use Symfony\Component\Lock\Store\FlockStore;
use Symfony\Component\Lock\Store\RedisStore;
use Symfony\Component\Lock\Strategy\UnanimousStrategy;

spl_autoload_register(fn ($class) => require __DIR__.'/debian/usr/share/php/'.str_replace('\\', '/', $class).'.php');
function redis($database)
{
    $redis = new Redis();
    $redis->connect('127.0.0.1', (int) $GLOBALS['argv'][1]);
    $redis->select($database);

    return new RedisStore($redis);
}
$text = fn ($yes) => $yes ? 'yes' : 'no';

foreach ([
    'two databases' => [redis(0), redis(1)],
    'a folder and a database' => [new FlockStore(__DIR__.'/old'), redis(2)],
    'two folders' => [new FlockStore(__DIR__.'/old'), new FlockStore(__DIR__.'/new')],
] as $what => $stores) {
    $lock = (new LockFactory(new CombinedStore($stores, new UnanimousStrategy())))->createLock($what, 60);
    echo "$what: both: ", $text($lock->acquire()), ', has it: ', $text($lock->isAcquired());
    foreach (['first', 'second'] as $number => $name) {
        echo ", in the $name alone: ", $text((new LockFactory($stores[$number]))->createLock($what, 60)->acquire());
    }
    echo PHP_EOL;
    $lock->release();
}
END
php() {
	debian/usr/bin/php8.2 -n -d "extension_dir=$folder/debian/usr/lib/php/20220829" -d extension=igbinary -d extension=redis \
		-d display_errors=stderr "$@"
}
expect php main.php "$port" <<'END'
two databases: both: yes, has it: yes, in the first alone: no, in the second alone: no
a folder and a database: both: yes, has it: yes, in the first alone: no, in the second alone: no
two folders: both: yes, has it: yes, in the first alone: no, in the second alone: yes
END
