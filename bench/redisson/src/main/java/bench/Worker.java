package bench;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/**
 * The real Redisson as a worker process of the benchmark, with the same command line, and the same lines on stdin and
 * stdout, as the workers in Go.
 *
 * <pre>
 * java -jar worker.jar [worker] --workload W --addr HOST:PORT --name LOCKNAME [OPTION...]
 *
 *   --lib         redisson, the only one here
 *   --workload    what to do: see Workload
 *   --addr        the Redis server
 *   --name        the lock's name, or the start of the names
 *   --clients     instances of Redisson, each with as many threads (1)
 *   --goroutines  threads, or waiters, or holds (1)
 *   --section     the time a section takes (0s)
 *   --duration    the measured window, as Go prints durations: 1s, 500ms, 1m30s (1s)
 *   --witness     the file shared by all workers of a run; without it this process has its own
 *   --worker      this process's number among those that share the file, from 0 (0)
 *   --rtt         the time the harness adds to each round trip (0s)
 *   --watchdog    Redisson's lockWatchdogTimeout (30s, holds: 3s)
 *   --warm-up     CPU time to spend on other names before the window, to compile the code (5s)
 * </pre>
 *
 * An option's value follows as the next word or after {@code =}.
 *
 * <ol>
 *   <li>The worker connects, warms up and prints {@code ready}.
 *   <li>At the line {@code go} on stdin it begins, and prints one line of JSON when it is done. Waiters
 *       and holds wait for the line {@code counted} before they end.
 *   <li>At the end of stdin it exits: with 0 if it is done, otherwise with 1, so that it never outlives the
 *       harness. Its locks then stay until their leases end.
 * </ol>
 *
 * Any failure prints {@code {"error":"..."}} as the last line, and exits with 1.
 * Logs go to stderr.
 */
public final class Worker {

    /** The command line. */
    record Options(String workload, String addr, String name, int clients, int goroutines,
            Duration section, Duration duration, String witness, int worker, Duration rtt, Duration watchdog, Duration warmUp) {

        static Options parse(String[] args) {
            Map<String, String> given = new HashMap<>();
            for (int i = args.length > 0 && args[0].equals("worker") ? 1 : 0; i < args.length; i++) {
                if (!args[i].startsWith("-")) {
                    throw new IllegalArgumentException("not an option: " + args[i]);
                }
                String[] option = args[i].replaceFirst("^--?", "").split("=", 2);
                if (option.length == 1 && i + 1 == args.length) {
                    throw new IllegalArgumentException("no value: " + args[i]);
                }
                given.put(option[0], option.length == 2 ? option[1] : args[++i]);
            }
            String lib = take(given, "lib", "redisson");
            if (!lib.equals("redisson")) {
                throw new IllegalArgumentException("unknown lib " + lib);
            }
            String workload = take(given, "workload", null);
            Options options = new Options(
                    workload,
                    take(given, "addr", null),
                    take(given, "name", null),
                    Integer.parseInt(take(given, "clients", "1")),
                    Integer.parseInt(take(given, "goroutines", "1")),
                    duration(take(given, "section", "0s")),
                    duration(take(given, "duration", "1s")),
                    take(given, "witness", ""),
                    Integer.parseInt(take(given, "worker", "0")),
                    duration(take(given, "rtt", "0s")),
                    duration(take(given, "watchdog", workload.equals("holds") ? "3s" : "30s")),
                    duration(take(given, "warm-up", "5s")));
            if (!given.isEmpty()) {
                throw new IllegalArgumentException("unknown options " + given.keySet());
            }
            if (options.clients < 1 || options.goroutines < 1 || options.worker < 0) {
                throw new IllegalArgumentException("--clients and --goroutines are 1 at least, --worker 0 at least");
            }
            return options;
        }

        private static String take(Map<String, String> given, String option, String otherwise) {
            String value = given.containsKey(option) ? given.remove(option) : otherwise;
            if (value == null) {
                throw new IllegalArgumentException("--" + option + " is missing");
            }
            return value;
        }

        private static final Pattern PART = Pattern.compile("(\\d+(?:\\.\\d+)?)(ns|us|µs|ms|s|m|h)");

        /** Parses the output of Go's time.Duration. */
        private static Duration duration(String text) {
            Matcher part = PART.matcher(text);
            double nanos = 0;
            int end = 0;
            while (part.find() && part.start() == end) {
                nanos += Double.parseDouble(part.group(1)) * switch (part.group(2)) {
                    case "ns" -> 1;
                    case "us", "µs" -> 1e3;
                    case "ms" -> 1e6;
                    case "s" -> 1e9;
                    case "m" -> 60e9;
                    default -> 3600e9;
                };
                end = part.end();
            }
            if (end == 0 || end < text.length()) {
                throw new IllegalArgumentException("not a duration: " + text);
            }
            return Duration.ofNanos(Math.round(nanos));
        }
    }

    /**
     * The measurements of a workload, as the workers in Go report them.
     *
     * @param ops          sections that ended in the window
     * @param elapsedNs    the time they took
     * @param latency      see the workload
     * @param perGoroutine ops of each thread; empty where each has one
     * @param sections     all sections seen by the witness: ops, and those before and after the window
     * @param violations   how often it saw two inside that may not meet
     * @param stuck        threads that still waited long after all others were done
     * @param extra        more numbers, by name
     */
    record Result(long ops, long elapsedNs, Histogram latency, long[] perGoroutine, long sections,
            long violations, int stuck, Map<String, Double> extra) {

        /** Without allocations, which cannot be compared with another runtime's. */
        String json() {
            return "{\"ops\":" + ops
                    + ",\"elapsed_ns\":" + elapsedNs
                    + ",\"latency_ns\":{\"p50\":" + latency.quantile(0.50)
                    + ",\"p99\":" + latency.quantile(0.99)
                    + ",\"max\":" + latency.max() + "}"
                    + ",\"per_goroutine\":" + Arrays.toString(perGoroutine).replace(" ", "")
                    + ",\"sections\":" + sections
                    + ",\"violations\":" + violations
                    + ",\"stuck\":" + stuck
                    + ",\"extra\":{" + extra.entrySet().stream()
                            .map(number -> quote(number.getKey()) + ":" + number.getValue())
                            .collect(Collectors.joining(",")) + "}}";
        }
    }

    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    /** Opened when the harness has counted the commands of a window in which nothing else happens. */
    static final CountDownLatch COUNTED = new CountDownLatch(1);

    /** Whether the last line has been printed; guarded by OUT. */
    private static boolean done;

    public static void main(String[] args) {
        // Only the protocol may reach stdout, whatever a library prints.
        System.setOut(System.err);
        if (System.getProperty("org.slf4j.simpleLogger.defaultLogLevel") == null) {
            System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "warn");
        }
        CountDownLatch go = new CountDownLatch(1);
        Crew.start("workload", () -> {
            Workload workload = Workload.open(Options.parse(args));
            workload.prepare();
            System.gc(); // the garbage of the preparation is not the workload's
            OUT.println("ready");
            go.await();
            finish(workload.run().json());
        });
        try {
            listen(go);
        } catch (IOException | RuntimeException e) {
            fail(e);
        }
    }

    /** Reads stdin while the workload runs, to notice the end of the harness. */
    private static void listen(CountDownLatch go) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line = in.readLine();
        if ("go".equals(line)) {
            go.countDown();
            line = in.readLine();
        }
        if ("counted".equals(line)) {
            COUNTED.countDown();
            line = in.readLine();
        }
        if (line != null) {
            throw new IllegalArgumentException("want: go, counted, then the end; got: " + line);
        }
        synchronized (OUT) {
            Runtime.getRuntime().halt(done ? 0 : 1);
        }
    }

    private static void finish(String line) {
        synchronized (OUT) {
            OUT.println(line);
            done = true;
        }
    }

    /** Ends the process at once, from any thread. */
    static void fail(Throwable e) {
        e.printStackTrace();
        synchronized (OUT) {
            if (!done) {
                finish("{\"error\":" + quote(e.toString()) + "}");
            }
            Runtime.getRuntime().halt(1);
        }
    }

    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }
}
