#!/usr/bin/env bash
# asyncpg: an advisory lock that is taken by pool.fetchval() is free as soon as it is had; psycopg's pool keeps it, and grants it twice
#
# Run:      asyncpg 0.32.0, psycopg 3.3.9 with psycopg-pool 3.3.3 (PyPI), PostgreSQL 16.2 (in pgserver 0.1.4): pg_try_advisory_lock on a
#           connection of a pool that is given back, then on a connection of somebody else, then from the pool again. With asyncpg also on a
#           connection that is not given back.
# Guess:    a session's lock is there until the session ends or unlocks, and a pool keeps sessions: the other one is refused.
# Seen:     psycopg: so, and the pool that asks again is told yes, as it gets the same session. asyncpg's pool resets a connection when it is
#           given back, and that unlocks all advisory locks. The answer is true, and nobody has the lock.
# Matters:  pool.fetchval() is the shortest way to run a statement, and "true" is what one expects. Two workers are both leaders, and each
#           test with one worker passes. What belongs to a session needs a connection for as long as it is held.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_postgres member
python_packages asyncpg==0.32.0 'psycopg[binary]==3.3.9' psycopg-pool==3.3.3
cat >main.py <<'END'
import asyncio
import sys

import asyncpg
from psycopg_pool import AsyncConnectionPool

ASK = "SELECT pg_try_advisory_lock(1)"


async def connect(url):
    for _ in range(300):
        try:
            return await asyncpg.connect(url)
        except (OSError, asyncpg.CannotConnectNowError):
            await asyncio.sleep(0.1)
    sys.exit("no PostgreSQL")


async def ask_other(other):
    got = await other.fetchval(ASK)
    if got:
        await other.execute("SELECT pg_advisory_unlock_all()")
    return got


async def main(url):
    other = await connect(url)

    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        print("asyncpg, pool.fetchval():", await pool.fetchval(ASK))
        print("  somebody else:", await ask_other(other))
        async with pool.acquire() as connection:
            print("asyncpg, a connection that is kept:", await connection.fetchval(ASK))
            print("  somebody else:", await ask_other(other))

    async with AsyncConnectionPool(url, min_size=1, max_size=1, kwargs={"autocommit": True}, open=False) as pool:

        async def ask_pool():
            async with pool.connection() as connection:
                return (await (await connection.execute(ASK)).fetchone())[0]

        print("psycopg, pool.connection():", await ask_pool())
        print("  somebody else:", await ask_other(other))
        print("  the pool again:", await ask_pool())
    await other.close()


asyncio.run(main(f"postgresql://member@127.0.0.1:{sys.argv[1]}/postgres"))
END
expect python3 main.py "$port" <<'END'
asyncpg, pool.fetchval(): True
  somebody else: True
asyncpg, a connection that is kept: True
  somebody else: False
psycopg, pool.connection(): True
  somebody else: False
  the pool again: True
END
