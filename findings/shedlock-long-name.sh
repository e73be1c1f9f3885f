#!/usr/bin/env bash
# ShedLock: a job whose name is longer than the column for it is skipped each time, as if somebody else had the lock
#
# Run:      ShedLock 6.10.0 with its provider for JDBC templates and H2 2.4.240 (Maven): executeWithLock before there is a table. Then with
#           the table of its documentation, whose names have up to 64 characters, for names of 64 and 65.
# Guess:    an exception for the name that does not fit, as for the table that is not there.
# Seen:     an insert that violates a constraint is taken to be one that somebody else was faster with: executeWithLock returns, without the
#           job and without an exception. The log has an error, and the job never runs.
# Matters:  names of jobs are made of packages, classes, methods and tenants. Which constraint is violated matters: only a duplicate key
#           says that the lock is taken.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

jars net.javacrumbs.shedlock:shedlock-provider-jdbc-template:6.10.0 com.h2database:h2:2.4.240
cat >Main.java <<'END'
import java.time.*;
import net.javacrumbs.shedlock.core.*;
import net.javacrumbs.shedlock.provider.jdbctemplate.JdbcTemplateLockProvider;
import org.h2.jdbcx.JdbcDataSource;

class Main {
    static JdbcDataSource database;

    static String runs(int length) {
        var job = new LockConfiguration(Instant.now(), "n".repeat(length), Duration.ofMinutes(1), Duration.ZERO);
        boolean[] ran = {false};
        try {
            new DefaultLockingTaskExecutor(new JdbcTemplateLockProvider(database)).executeWithLock((Runnable) () -> ran[0] = true, job);
        } catch (Exception e) {
            return e.getClass().getSimpleName();
        }
        return ran[0] ? "runs" : "skipped";
    }

    public static void main(String[] args) throws Exception {
        database = new JdbcDataSource();
        database.setURL("jdbc:h2:mem:jobs;DB_CLOSE_DELAY=-1");
        System.out.println("no table: " + runs(64));
        database.getConnection().createStatement().execute("CREATE TABLE shedlock (name VARCHAR(64) PRIMARY KEY,"
            + " lock_until TIMESTAMP NOT NULL, locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL)");
        System.out.println("64 characters: " + runs(64));
        System.out.println("65 characters: " + runs(65));
    }
}
END
expect java_main <<'END'
no table: BadSqlGrammarException
64 characters: runs
65 characters: skipped
END
