#!/usr/bin/env bash
# db-scheduler: schedule() of an instance that is running returns as usual, and what it asked for never runs
#
# Run:      db-scheduler 15.5.0 with H2 2.3.232 (Maven): a one-time task "mail" with the instance "42" and data "first". schedule() of the same
#           instance with "second", by the time it waits, while it runs, and after it is done. While it runs, also reschedule(), and
#           scheduleIfNotExists().
# Guess:    while it runs, "second" runs after it, as the row of a one-time task is removed by then, or there is an exception, as reschedule()
#           has one for this. While it waits, the later call replaces the data or fails.
# Seen:     schedule() inserts a row for the instance unless there is one, and returns nothing. The row of the run is there until it
#           ends, and then it is gone, with the request. reschedule() does throw; scheduleIfNotExists() says false.
# Matters:  "something has changed, work on it once more" is lost just when the work is under way, and has read the old state. A request
#           needs a name of its own, or the answer of scheduleIfNotExists().
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

jars com.github.kagkarlsson:db-scheduler:15.5.0 com.h2database:h2:2.3.232
cat >Main.java <<'END'
import com.github.kagkarlsson.scheduler.Scheduler;
import com.github.kagkarlsson.scheduler.task.helper.*;
import java.time.*;
import java.util.concurrent.*;

class Main {
    static void attempt(String when, String call, Callable<String> action) {
        String seen;
        try {
            seen = action.call();
        } catch (Exception e) {
            seen = e.getClass().getSimpleName();
        }
        System.out.println(when + ": " + call + ": " + seen);
    }

    public static void main(String[] args) throws Exception {
        var database = new org.h2.jdbcx.JdbcDataSource();
        database.setURL("jdbc:h2:mem:tasks;DB_CLOSE_DELAY=-1");
        try (var connection = database.getConnection(); var statement = connection.createStatement()) {
            statement.execute("""
                create table scheduled_tasks (task_name varchar(100), task_instance varchar(100), task_data blob,
                execution_time timestamp with time zone, picked boolean, picked_by varchar(50), last_success timestamp with time zone,
                last_failure timestamp with time zone, consecutive_failures int, last_heartbeat timestamp with time zone, version bigint,
                priority smallint, primary key (task_name, task_instance))""");
        }
        var ran = new LinkedBlockingQueue<String>();
        var end = new Semaphore(0);
        OneTimeTask<String> mail = Tasks.oneTime("mail", String.class).execute((instance, context) -> {
            ran.add(instance.getData());
            end.acquireUninterruptibly();
        });
        var scheduler = Scheduler.create(database, mail).pollingInterval(Duration.ofMillis(100)).build();
        Callable<String> schedule = () -> {
            scheduler.schedule(mail.instance("42", "second"), Instant.now());
            return "returns";
        };
        scheduler.schedule(mail.instance("42", "first"), Instant.now());
        attempt("waits", "schedule()", schedule);
        scheduler.start();
        System.out.println("ran: " + ran.take());
        attempt("runs", "schedule()", schedule);
        attempt("runs", "scheduleIfNotExists()", () -> "" + scheduler.scheduleIfNotExists(mail.instance("42", "second"), Instant.now()));
        attempt("runs", "reschedule()", () -> "" + scheduler.reschedule(mail.instance("42", "second"), Instant.now()));
        end.release();
        System.out.println("ran: " + ran.poll(5, TimeUnit.SECONDS) + ", scheduled: " + scheduler.getScheduledExecutions().size());
        attempt("is done", "schedule()", schedule);
        System.out.println("ran: " + ran.take());
        end.release();
        scheduler.stop();
    }
}
END
expect java_main 2>java.log <<'END'
waits: schedule(): returns
ran: first
runs: schedule(): returns
runs: scheduleIfNotExists(): false
runs: reschedule(): TaskInstanceCurrentlyExecutingException
ran: null, scheduled: 0
is done: schedule(): returns
ran: second
END
