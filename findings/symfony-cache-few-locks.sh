#!/usr/bin/env bash
# Symfony Cache: while a slow value is made, get() of some other values waits for it, in other pools and other stores, too
#
# Run:      Symfony Cache 5.4.53 with PHP 8.2.36 and phpredis 5.3.7 (Debian 12), Redis 8.2.3, PHP's own web server: a visitor has the value
#           "catalogue" made, which takes ten seconds. Meanwhile others ask for values that take no time, "user.1" to "user.40": of that pool, of
#           one in another folder, and of one in Redis; and on the command line, where the cache has no locks.
# Guess:    none waits. What keeps a herd from making the catalogue is a lock of the catalogue.
# Seen:     in each of the three pools "user.12" waits until the catalogue is there. There are 26 locks for all: the package's own source
#           files, of which the key's checksum chooses one, whatever pool and store it is for.
# Matters:  the slowest value keeps visitors waiting who ask for a quick one, also those of another application with that copy of the
#           package, and which ones is a matter of names. Few locks for many names are for sections that are short.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
debian php8.2-cli=8.2.36-1~deb12u1 php8.2-common=8.2.36-1~deb12u1 php8.2-igbinary=3.2.13-1 php8.2-redis=5.3.7+4.3.0-3 \
	libargon2-1=0~20171227-0.3+deb12u1 php-psr-log=1.1.4-2 php-psr-cache=1.0.1-3 php-symfony-{cache,var-exporter}=5.4.53+dfsg-0+deb12u1 \
	php-symfony-{cache,service,deprecation}-contracts=2.5.5-0+deb12u1
cat >pools.php <<'END'
<?php
use Symfony\Component\Cache\Adapter\FilesystemAdapter;
use Symfony\Component\Cache\Adapter\RedisAdapter;

spl_autoload_register(function ($class) {
    $file = __DIR__.'/debian/usr/share/php/'.str_replace('\\', '/', $class).'.php';
    if (is_file($file)) {
        require $file;
    }
});

function pool($name)
{
    return 'Redis' == $name ? new RedisAdapter(RedisAdapter::createConnection('redis://127.0.0.1:'.getenv('REDIS')))
        : new FilesystemAdapter('', 0, __DIR__.'/'.strtr($name, ' ', '-'));
}

function catalogue($name)
{
    pool($name)->get('catalogue', function () {
        touch('begun');
        sleep(10);

        return 'the catalogue';
    });
}

/** Says which of forty users had to wait. */
function users($name)
{
    $pool = pool($name);
    $waited = [];
    for ($i = 1; $i <= 40; ++$i) {
        $start = microtime(true);
        $pool->get("user.$i", fn () => $i);
        if (microtime(true) - $start > 4) {
            $waited[] = "user.$i";
        }
    }

    return "$name: ".(implode(', ', $waited) ?: 'nobody').' waited'.PHP_EOL;
}

if ('cli' == PHP_SAPI) {
    echo users($argv[1]);
} elseif (isset($_GET['catalogue'])) {
    catalogue($_GET['catalogue']);
} else {
    echo users($_GET['users']);
}
END
cat >main.py <<'END'
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode
from urllib.request import urlopen


def ask(port, **query):
    for _ in range(200):
        try:
            with urlopen(f"http://127.0.0.1:{port}/?{urlencode(query)}") as answer:
                return answer.read().decode()
        except OSError:
            time.sleep(0.1)


ports = sys.argv[1].split()
with ThreadPoolExecutor(8) as visitors:
    visitors.submit(ask, ports[0], catalogue="the pool")
    while not os.path.exists("begun"):
        time.sleep(0.01)
    asked = [visitors.submit(ask, port, users=pool) for port, pool in zip(ports[1:], ("the pool", "another pool", "Redis"))]
    asked.append(visitors.submit(subprocess.check_output, sys.argv[2:] + ["on the command line"], text=True))
    for answer in asked:
        print(answer.result(), end="")
END
export REDIS=$port
php=(debian/usr/bin/php8.2 -n -d "extension_dir=$folder/debian/usr/lib/php/20220829" -d extension=igbinary -d extension=redis)
ports=()
for _ in 1 2 3 4; do # one for each visitor
	ports+=("$(free_port)")
	run "${php[@]}" -S "127.0.0.1:${ports[-1]}" pools.php
done
expect python3 main.py "${ports[*]}" "${php[@]}" pools.php <<'END'
the pool: user.12 waited
another pool: user.12 waited
Redis: user.12 waited
on the command line: nobody waited
END
