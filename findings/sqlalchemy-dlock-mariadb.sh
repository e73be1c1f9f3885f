#!/usr/bin/env bash
# sqlalchemy-dlock: on MariaDB, acquire() and "with" fail at once, also for a free lock; with a timeout or without waiting they work
#
# Run:      sqlalchemy-dlock 0.9.0 with SQLAlchemy 2.1.9 and PyMySQL 1.2.0 (PyPI), MariaDB 10.11.19 (Debian 12): a lock that nobody has, by
#           acquire(), by "with", by acquire(timeout=5) and by acquire(block=False).
# Guess:    all of them have it. MariaDB is on the list of what is supported, as "compatible with MySQL's GET_LOCK", and acquire() without
#           arguments is the first thing that one tries.
# Seen:     to wait for as long as it takes is GET_LOCK with a timeout of -1, as MySQL has it. To MariaDB that is "Incorrect timeout value",
#           a warning and NULL, at once.
# Matters:  what waits is what fails, and it fails on the first day; but a service that moves from MySQL to MariaDB has that day in
#           production. A fork's function of the same name is one more thing to try, not the same thing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

debian mariadb-server-core=1:10.11.19-0+deb12u1 libaio1=0.3.113-4 libnuma1=2.0.16-1 liburing2=2.3-3
mkdir data
port=$(free_port)
run debian/usr/sbin/mariadbd --no-defaults --user=root --skip-grant-tables --datadir="$folder/data" --lc-messages-dir=debian/usr/share/mysql \
	--skip-networking=0 --bind-address=127.0.0.1 --port="$port" --socket="$folder/socket" --pid-file="$folder/pid"
unset LD_LIBRARY_PATH
python_packages sqlalchemy-dlock==0.9.0 SQLAlchemy==2.1.9 PyMySQL==1.2.0
cat >main.py <<'END'
import sys
import time

from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy_dlock import create_sadlock


def connect(engine):
    for _ in range(300):
        try:
            return engine.connect()
        except OperationalError:
            time.sleep(0.2)
    sys.exit("no server")


def enter(lock):
    with lock:
        return lock.locked


connection = connect(create_engine(f"mysql+pymysql://root@127.0.0.1:{sys.argv[1]}/"))
for name, get in [
    ("acquire()", lambda lock: lock.acquire()),
    ("with", enter),
    ("acquire(timeout=5)", lambda lock: lock.acquire(timeout=5)),
    ("acquire(block=False)", lambda lock: lock.acquire(block=False)),
]:
    lock = create_sadlock(connection, "report")
    try:
        print(f"{name}: {get(lock)}")
    except Exception as error:
        print(f"{name}: {type(error).__name__}")
    if lock.locked:
        lock.release()
answer = connection.execute(text("SELECT GET_LOCK('report', -1)")).scalar_one()
print("MariaDB of -1:", answer, connection.execute(text("SHOW WARNINGS")).one()[2])
END
expect python3 main.py "$port" <<'END'
acquire(): SqlAlchemyDLockDatabaseError
with: SqlAlchemyDLockDatabaseError
acquire(timeout=5): True
acquire(block=False): True
MariaDB of -1: None Incorrect timeout value: '-1' for function get_lock
END
