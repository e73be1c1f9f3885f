#!/usr/bin/env bash
# Hibernate: on PostgreSQL a lock timeout of two seconds waits for as long as the lock is held; 0 and -2 are kept
#
# Run:      Hibernate 7.1.11 with the PostgreSQL driver 42.7.8 (Maven), PostgreSQL 16.2 (in pgserver 0.1.4): find() with PESSIMISTIC_WRITE of
#           a row that another session has locked for six seconds, with jakarta.persistence.lock.timeout of 0, of two seconds, and of -2 (skip
#           locked), and with two seconds after SET LOCAL lock_timeout by hand.
# Guess:    an exception at once, one after two seconds, and no row. PostgreSQL has a lock_timeout, and 0 works.
# Seen:     0 becomes NOWAIT, and -2 SKIP LOCKED. There is no such word for two seconds in PostgreSQL's SQL: the timeout is dropped without
#           a warning, and find() returns when the other session is done. By hand it is an exception after two seconds.
# Matters:  "wait for two seconds at most" waits for a session that hangs for as long as that does, with a connection of the pool each. The
#           test with 0 passes, and so does one with a holder that is quick.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_postgres member
jars org.hibernate.orm:hibernate-core:7.1.11.Final org.postgresql:postgresql:42.7.8
cat >Main.java <<'END'
import jakarta.persistence.*;
import java.sql.*;
import java.util.Map;
import java.util.concurrent.*;
import org.hibernate.SessionFactory;
import org.hibernate.cfg.Configuration;

class Main {
    @Entity(name = "Item")
    static class Item {
        @Id
        int id;
    }

    static void ask(SessionFactory sessions, String name, int timeout, String before) throws Exception {
        var other = sessions.openSession();
        other.beginTransaction();
        other.find(Item.class, 1, LockModeType.PESSIMISTIC_WRITE);
        var asked = CompletableFuture.supplyAsync(() -> {
            try {
                return sessions.fromTransaction(session -> {
                    if (before != null) {
                        session.createNativeMutationQuery(before).executeUpdate();
                    }
                    Object item = session.find(Item.class, 1, LockModeType.PESSIMISTIC_WRITE, Map.of("jakarta.persistence.lock.timeout", timeout));
                    return item == null ? "no row" : "the row";
                });
            } catch (PersistenceException e) {
                return "an exception";
            }
        });
        Thread.sleep(6000);
        boolean before6 = asked.isDone();
        other.getTransaction().rollback();
        other.close();
        System.out.println(name + ": " + asked.get() + (before6 ? ", while it is locked" : ", when it is free"));
    }

    public static void main(String[] args) throws Exception {
        String url = "jdbc:postgresql://127.0.0.1:" + args[0] + "/postgres?user=member";
        for (int tries = 0;; tries++) {
            try {
                DriverManager.getConnection(url).close();
                break;
            } catch (SQLException e) {
                if (tries == 300) {
                    throw e;
                }
                Thread.sleep(100);
            }
        }
        try (var sessions = new Configuration().addAnnotatedClass(Item.class).setProperty("hibernate.connection.url", url)
                .setProperty("hibernate.hbm2ddl.auto", "create").buildSessionFactory()) {
            sessions.inTransaction(session -> {
                Item item = new Item();
                item.id = 1;
                session.persist(item);
            });
            ask(sessions, "0", 0, null);
            ask(sessions, "2000", 2000, null);
            ask(sessions, "-2", -2, null);
            ask(sessions, "2000, and by hand", 2000, "SET LOCAL lock_timeout = 2000");
        }
    }
}
END
expect java_main "$port" 2>java.log <<'END'
0: an exception, while it is locked
2000: the row, when it is free
-2: no row, while it is locked
2000, and by hand: an exception, while it is locked
END
