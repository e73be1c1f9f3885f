#!/usr/bin/env bash
# SQLAlchemy, Hibernate: a row that is read FOR UPDATE has the values from before the lock, if the session has read it before
#
# Run:      SQLAlchemy 2.1.9 with psycopg 3.3.9 (PyPI), Hibernate 6.6.30 with its JDBC driver 42.7.7 (Maven), PostgreSQL 16.2 (in pgserver
#           0.1.4) at READ COMMITTED: a session reads an account of 100, somebody else takes 30 off and commits, and the session reads the
#           account again, with a lock, in each way that there is.
# Guess:    70, in all ways. What the lock is for is to read what nobody can change any more, and the statement that is sent for it is a
#           SELECT … FOR UPDATE of that row.
# Seen:     100, from most of them: PostgreSQL returns 70, and the session keeps the object that it has. 70 from refresh, from
#           populate_existing, and where a column is selected instead of an object.
# Matters:  check without a lock, then lock, then write is how one keeps a lock short, and what is written is made of the value from before:
#           a lost update, under a row lock. Read a row for the first time with the lock, or refresh it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_postgres member
python_packages SQLAlchemy==2.1.9 'psycopg[binary]==3.3.9'
jars org.hibernate.orm:hibernate-core:6.6.30.Final org.postgresql:postgresql:42.7.7
cat >main.py <<'END'
import sys
import time

from sqlalchemy import create_engine, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


def refreshed(session, account):
    session.refresh(account, with_for_update=True)
    return account.balance


engine = create_engine(f"postgresql+psycopg://member@127.0.0.1:{sys.argv[1]}/postgres")
for _ in range(300):
    try:
        Base.metadata.create_all(engine)
        break
    except OperationalError:
        time.sleep(0.1)
with Session(engine) as session, session.begin():
    session.add(Account(id=1, balance=100))
locked = select(Account).with_for_update()
for name, read in [
    ("select(Account).with_for_update()", lambda session, _: session.scalars(locked).one().balance),
    ("get(with_for_update=True)", lambda session, _: session.get(Account, 1, with_for_update=True).balance),
    ("refresh(with_for_update=True)", refreshed),
    ("populate_existing", lambda session, _: session.scalars(locked, execution_options={"populate_existing": True}).one().balance),
    ("select(Account.balance)", lambda session, _: session.scalar(select(Account.balance).with_for_update())),
]:
    with engine.begin() as other:
        other.execute(text("UPDATE account SET balance = 100"))
    with Session(engine) as session:
        account = session.get(Account, 1)
        with engine.begin() as other:
            other.execute(text("UPDATE account SET balance = balance - 30"))
        print(f"SQLAlchemy, {name}: {read(session, account)}")
END
cat >Main.java <<'END'
import static jakarta.persistence.LockModeType.PESSIMISTIC_WRITE;

import jakarta.persistence.*;
import java.util.*;
import java.util.function.BiFunction;
import java.util.logging.*;
import org.hibernate.*;
import org.hibernate.cfg.Configuration;

class Main {
    @Entity(name = "Account")
    @Table(name = "account")
    public static class Account {
        @Id int id;
        int balance;
    }

    static void set(SessionFactory factory, int balance) {
        factory.inTransaction(session -> session.createNativeMutationQuery("UPDATE account SET balance = " + balance).executeUpdate());
    }

    public static void main(String[] args) {
        Logger.getLogger("").setLevel(Level.OFF);
        Map<String, BiFunction<Session, Account, Account>> ways = new LinkedHashMap<>();
        ways.put("find(PESSIMISTIC_WRITE)", (session, account) -> session.find(Account.class, 1, PESSIMISTIC_WRITE));
        ways.put("lock(PESSIMISTIC_WRITE)", (session, account) -> {
            session.lock(account, PESSIMISTIC_WRITE);
            return account;
        });
        ways.put("setLockMode(PESSIMISTIC_WRITE)",
            (session, account) -> session.createQuery("from Account", Account.class).setLockMode(PESSIMISTIC_WRITE).getSingleResult());
        ways.put("refresh(PESSIMISTIC_WRITE)", (session, account) -> {
            session.refresh(account, PESSIMISTIC_WRITE);
            return account;
        });
        SessionFactory factory = new Configuration().addAnnotatedClass(Account.class)
            .setProperty("hibernate.connection.url", "jdbc:postgresql://127.0.0.1:" + args[0] + "/postgres")
            .setProperty("hibernate.connection.username", "member")
            .buildSessionFactory();
        ways.forEach((name, read) -> {
            set(factory, 100);
            factory.inTransaction(session -> {
                Account account = session.find(Account.class, 1);
                set(factory, 70);
                System.out.println("Hibernate, " + name + ": " + read.apply(session, account).balance);
            });
        });
        factory.close();
    }
}
END
both() {
	python3 main.py "$port" && java_main "$port"
}
expect both <<'END'
SQLAlchemy, select(Account).with_for_update(): 100
SQLAlchemy, get(with_for_update=True): 100
SQLAlchemy, refresh(with_for_update=True): 70
SQLAlchemy, populate_existing: 70
SQLAlchemy, select(Account.balance): 70
Hibernate, find(PESSIMISTIC_WRITE): 100
Hibernate, lock(PESSIMISTIC_WRITE): 100
Hibernate, setLockMode(PESSIMISTIC_WRITE): 100
Hibernate, refresh(PESSIMISTIC_WRITE): 70
END
