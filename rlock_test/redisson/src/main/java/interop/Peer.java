package interop;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

import org.redisson.Redisson;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;
import org.redisson.connection.ConnectionManager;

/**
 * The real Redisson behind a line protocol: one Redisson instance, any number of named threads.
 *
 * <pre>
 * java -jar peer.jar [--mode=single|cluster] [--watchdog=MS] HOST:PORT...
 *
 *   --mode      single (the default, one address) or cluster (one address or more)
 *   --watchdog  Redisson's lockWatchdogTimeout in ms (30000)
 * </pre>
 *
 * <h2>Request</h2>
 *
 * One line, its fields separated by one space:
 *
 * <pre>ID THREAD OP [ARG...]</pre>
 *
 * ID is any word, repeated in the reply. THREAD is any word; the first request with it starts that
 * thread. It lives until the end of the process and handles its requests in order, so a blocked
 * thread delays only its own requests. Replies come in the order in which the operations end.
 *
 * <pre>
 * lock NAME [LEASE_MS]             lockInterruptibly; without a lease the watchdog renews   -
 * trylock NAME WAIT_MS [LEASE_MS]  tryLock; WAIT_MS 0 is one attempt                 true|false
 * trylock.s NAME WAIT_S            tryLock, its unit SECONDS                         true|false
 * unlock NAME                      unlock                                                   -
 * force NAME                       forceUnlock                                       true|false
 * count NAME                       getHoldCount, of this thread                        a number
 * held NAME                        isHeldByCurrentThread                             true|false
 * locked NAME                      isLocked                                          true|false
 * ttl NAME                         remainTimeToLive                              a number of ms
 * token NAME                       lockAndGetToken of a fenced lock                  a number
 * hammer NAME FILE MS [LEASE_MS]   for MS ms: lock, add 1 to the number in FILE, unlock;
 *                                  answers how often                                   a number
 * steady NAME FILE MS [LEASE_MS]   for MS ms: lock, read the number in FILE twice, a ms apart, unlock; an error
 *                                  if they differ; answers how often                   a number
 * latch.set NAME N                 trySetCount of a count-down latch                 true|false
 * latch.down NAME N                countDown, N times                                        -
 * latch.count NAME                 getCount                                           a number
 * latch.await NAME [WAIT_MS]       await                                              true|false
 * latch.delete NAME                delete                                            true|false
 * sem.set NAME N                   trySetPermits of a semaphore                      true|false
 * sem.acquire NAME N               acquire                                                   -
 * sem.tryacquire NAME N WAIT_MS    tryAcquire                                        true|false
 * sem.release NAME N               release                                                   -
 * sem.available NAME               availablePermits                                   a number
 * sem.drain NAME                   drainPermits                                       a number
 * sem.hammer NAME N MS             for MS ms: acquire N, sleep a ms, release N; answers how often  a number
 * permit.set NAME N                trySetPermits of a semaphore with permits that expire  true|false
 * permit.acquire NAME [LEASE_MS]   acquire                                               an id
 * permit.tryacquire NAME WAIT_MS LEASE_MS  tryAcquire                                    an id|null
 * permit.release NAME ID           tryRelease                                        true|false
 * permit.lease NAME ID MS          updateLeaseTime                                   true|false
 * permit.available NAME            availablePermits                                   a number
 * permit.hammer NAME LEASE_MS MS   for MS ms: acquire, sleep a ms, release; answers how often  a number
 * threadid                         the thread's id, the second half of its owner field  a number
 * id                               the UUID of this Redisson, the first half            a UUID
 * interrupt                        interrupts THREAD; was it inside an operation?    true|false
 * sleeps                           does THREAD sleep until a message or a time-out?  true|false
 * quit                             ends the process, whatever its threads do                -
 * </pre>
 *
 * The last column is the reply's VALUE. {@code interrupt}, {@code sleeps} and {@code quit} do not queue behind
 * the thread's other requests. At the end of stdin the process ends as by {@code quit}: it releases
 * nothing, so its locks stay until their leases end.
 *
 * NAME and FILE are encoded as by Go's {@code url.QueryEscape}: {@code a b:{c}} is
 * {@code a+b%3A%7Bc%7D}. NAME is a plain lock; {@code fair/NAME}, {@code read/NAME} and
 * {@code write/NAME} are the other kinds, and {@code fenced/NAME} from Redisson 3.19 on (a slash
 * inside a name is always encoded). {@code multi/NAME,NAME...} is a MultiLock of plain locks, in that order; a comma inside
 * a name is always encoded. A thread keeps one RLock object for each name.
 *
 * <h2>Reply</h2>
 *
 * <pre>
 * ID WALL_US TOOK_US ok VALUE
 * ID WALL_US TOOK_US err EXCEPTION MESSAGE
 * </pre>
 *
 * WALL_US is the wall clock in µs since 1970, read right after the operation: Go's
 * {@code time.Now().UnixMicro()} on the same machine reads the same clock. TOOK_US is the duration of
 * the operation in µs, on the monotonic clock; the operation began at WALL_US - TOOK_US. VALUE is
 * one word, {@code -} for none. EXCEPTION is the simple name of the exception's class
 * ({@code IllegalMonitorStateException}: not the owner; {@code InterruptedException}); MESSAGE is
 * its text, encoded like a name, {@code -} for none. The reply to an invalid request is
 * {@code err IllegalArgumentException}.
 *
 * The first line, sent once Redisson is connected, has the ID {@code ready} and as VALUE the UUID;
 * TOOK_US is the time to connect. Until then requests may be sent already. If Redisson cannot
 * connect, that line is an {@code err} and the process ends with status 1. Logs go to stderr.
 */
public final class Peer {

    /** An operation in a thread; returns the reply's VALUE. */
    private interface Operation {
        Object run() throws Exception;
    }

    private record Request(String id, Operation operation) {}

    private final RedissonClient redisson;
    private final String uuid;
    private final PrintStream out;

    /** The threads by name. Only the reader (the main thread) uses it. */
    private final Map<String, Worker> workers = new HashMap<>();

    /**
     * An RLock for each thread and name: the object remembers its last fixed lease, and a partial unlock
     * refreshes the expiry to it.
     */
    private final ThreadLocal<Map<String, RLock>> locks = ThreadLocal.withInitial(HashMap::new);

    private Peer(RedissonClient redisson, PrintStream out) throws ReflectiveOperationException {
        this.redisson = redisson;
        this.uuid = uuid(redisson);
        this.out = out;
    }

    /** RedissonClient.getId, which in the oldest versions is in another class. */
    private static String uuid(RedissonClient redisson) throws ReflectiveOperationException {
        try {
            return (String) RedissonClient.class.getMethod("getId").invoke(redisson);
        } catch (NoSuchMethodException e) {
            Object manager = Redisson.class.getMethod("getConnectionManager").invoke(redisson);
            return ConnectionManager.class.getMethod("getId").invoke(manager).toString();
        }
    }

    public static void main(String[] args) throws IOException {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        // Only replies may reach stdout, whatever a library prints.
        System.setOut(System.err);
        if (System.getProperty("org.slf4j.simpleLogger.defaultLogLevel") == null) {
            System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "warn");
        }

        Peer[] peer = new Peer[1];
        boolean connected = answer(out, "ready", () -> {
            peer[0] = new Peer(Redisson.create(config(args)), out);
            return peer[0].uuid;
        });
        if (!connected) {
            halt(1);
        }

        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (!line.isBlank()) {
                peer[0].accept(line.trim().split(" +"));
            }
        }
        halt(0);
    }

    /** How long Redisson waits for Redis, in ms. It gives up after 3 s otherwise, which a busy machine takes now and then. */
    private static final int PATIENCE = 30_000;

    /** The oldest versions wait for a subscription as long as for other commands, and lack the method. */
    private static void subscribePatiently(Object servers) {
        try {
            servers.getClass().getMethod("setSubscriptionTimeout", int.class).invoke(servers, PATIENCE);
        } catch (NoSuchMethodException e) {
            return;
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    private static Config config(String[] args) {
        String mode = "single";
        long watchdog = 30_000;
        List<String> addresses = new ArrayList<>();
        for (String arg : args) {
            if (arg.startsWith("--mode=")) {
                mode = arg.substring("--mode=".length());
            } else if (arg.startsWith("--watchdog=")) {
                watchdog = Long.parseLong(arg.substring("--watchdog=".length()));
            } else if (arg.startsWith("-")) {
                throw new IllegalArgumentException("unknown option " + arg);
            } else {
                addresses.add("redis://" + arg);
            }
        }
        if (addresses.isEmpty()) {
            throw new IllegalArgumentException("no address");
        }

        Config config = new Config();
        config.setLockWatchdogTimeout(watchdog);
        // Locks do not use the codec; the default codec of old versions does not start on JDK 17.
        config.setCodec(StringCodec.INSTANCE);
        // A few initial connections instead of 24, for a faster start. Pools still grow.
        switch (mode) {
            case "single" -> {
                if (addresses.size() > 1) {
                    throw new IllegalArgumentException("single mode takes one address");
                }
                subscribePatiently(config.useSingleServer()
                        .setAddress(addresses.get(0))
                        .setConnectionMinimumIdleSize(2)
                        .setTimeout(PATIENCE)
                        .setConnectTimeout(PATIENCE));
            }
            case "cluster" -> subscribePatiently(config.useClusterServers()
                    .addNodeAddress(addresses.toArray(new String[0]))
                    .setMasterConnectionMinimumIdleSize(2)
                    .setSlaveConnectionMinimumIdleSize(2)
                    .setTimeout(PATIENCE)
                    .setConnectTimeout(PATIENCE));
            default -> throw new IllegalArgumentException("unknown mode " + mode);
        }
        return config;
    }

    private void accept(String[] words) {
        String id = words[0];
        if (words.length < 3) {
            answer(out, id, () -> {
                throw new IllegalArgumentException("want: ID THREAD OP [ARG...]");
            });
            return;
        }
        Worker worker = workers.computeIfAbsent(words[1], Worker::new);
        String op = words[2];
        switch (op) {
            case "interrupt" -> answer(out, id, worker::interruptOperation);
            case "sleeps" -> answer(out, id, worker::sleeps);
            case "quit" -> {
                answer(out, id, () -> "-");
                halt(0);
            }
            default -> worker.queue.add(new Request(id, () -> perform(op, new Arguments(words))));
        }
    }

    /** Runs in the request's thread. */
    private Object perform(String op, Arguments args) throws Exception {
        switch (op) {
            case "id":
                return uuid;
            case "threadid":
                return Thread.currentThread().getId();
            case "hammer":
                return hammer(args.lock(0), args.text(1), args.number(2), args.lease(3));
            case "turns":
                return turns(args.lock(0), args.number(1), args.number(2));
            case "steady":
                return steady(args.lock(0), args.text(1), args.number(2), args.lease(3));
        }
        if (op.startsWith("latch.")) {
            return latch(op, redisson.getCountDownLatch(args.text(0)), args);
        }
        if (op.startsWith("sem.")) {
            return semaphore(op, redisson.getSemaphore(args.text(0)), args);
        }
        if (op.startsWith("permit.")) {
            return permit(op, redisson.getPermitExpirableSemaphore(args.text(0)), args);
        }
        RLock lock = args.lock(0);
        switch (op) {
            case "lock":
                acquire(lock, args.lease(1));
                return "-";
            case "trylock":
                long lease = args.lease(2);
                return lease == WATCHDOG
                        ? lock.tryLock(args.number(1), TimeUnit.MILLISECONDS)
                        : lock.tryLock(args.number(1), lease, TimeUnit.MILLISECONDS);
            case "trylock.s":
                return lock.tryLock(args.number(1), TimeUnit.SECONDS);
            case "unlock":
                lock.unlock();
                return "-";
            case "force":
                return lock.forceUnlock();
            case "count":
                return lock.getHoldCount();
            case "held":
                return lock.isHeldByCurrentThread();
            case "locked":
                return lock.isLocked();
            case "ttl":
                return lock.remainTimeToLive();
            case "token":
                return Class.forName("org.redisson.api.RFencedLock").getMethod("lockAndGetToken").invoke(lock);
            default:
                throw new IllegalArgumentException("unknown operation " + op);
        }
    }

    private static Object semaphore(String op, RSemaphore semaphore, Arguments args) throws InterruptedException {
        switch (op) {
            case "sem.set":
                return semaphore.trySetPermits((int) args.number(1));
            case "sem.acquire":
                semaphore.acquire((int) args.number(1));
                return "-";
            case "sem.tryacquire":
                return semaphore.tryAcquire((int) args.number(1), args.number(2), TimeUnit.MILLISECONDS);
            case "sem.release":
                semaphore.release((int) args.number(1));
                return "-";
            case "sem.available":
                return semaphore.availablePermits();
            case "sem.drain":
                return semaphore.drainPermits();
            case "sem.hammer":
                int n = (int) args.number(1);
                long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(args.number(2));
                long times = 0;
                while (System.nanoTime() - end < 0) {
                    semaphore.acquire(n);
                    Thread.sleep(1);
                    semaphore.release(n);
                    times++;
                }
                return times;
            default:
                throw new IllegalArgumentException("unknown operation " + op);
        }
    }

    private static Object permit(String op, RPermitExpirableSemaphore semaphore, Arguments args) throws InterruptedException {
        switch (op) {
            case "permit.set":
                return semaphore.trySetPermits((int) args.number(1));
            case "permit.acquire":
                return args.has(1) ? semaphore.acquire(args.number(1), TimeUnit.MILLISECONDS) : semaphore.acquire();
            case "permit.tryacquire":
                return String.valueOf(semaphore.tryAcquire(args.number(1), args.number(2), TimeUnit.MILLISECONDS));
            case "permit.release":
                return semaphore.tryRelease(args.text(1));
            case "permit.lease":
                return semaphore.updateLeaseTime(args.text(1), args.number(2), TimeUnit.MILLISECONDS);
            case "permit.available":
                return semaphore.availablePermits();
            case "permit.hammer":
                long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(args.number(2));
                long times = 0;
                while (System.nanoTime() - end < 0) {
                    String id = semaphore.acquire(args.number(1), TimeUnit.MILLISECONDS);
                    Thread.sleep(1);
                    semaphore.release(id);
                    times++;
                }
                return times;
            default:
                throw new IllegalArgumentException("unknown operation " + op);
        }
    }

    private static Object latch(String op, RCountDownLatch latch, Arguments args) throws InterruptedException {
        switch (op) {
            case "latch.set":
                return latch.trySetCount(args.number(1));
            case "latch.down":
                for (long left = args.number(1); left > 0; left--) {
                    latch.countDown();
                }
                return "-";
            case "latch.count":
                return latch.getCount();
            case "latch.await":
                if (args.has(1)) {
                    return latch.await(args.number(1), TimeUnit.MILLISECONDS);
                }
                latch.await();
                return true;
            case "latch.delete":
                return latch.delete();
            default:
                throw new IllegalArgumentException("unknown operation " + op);
        }
    }

    /** No lease: the watchdog renews. */
    private static final long WATCHDOG = -1;

    private static void acquire(RLock lock, long leaseMs) throws InterruptedException {
        if (leaseMs == WATCHDOG) {
            lock.lockInterruptibly();
        } else {
            lock.lockInterruptibly(leaseMs, TimeUnit.MILLISECONDS);
        }
    }

    /**
     * Reading and writing the file are separate steps on purpose: if two holders were ever inside together,
     * an addition would be lost, and the file would show less than the sum of all replies.
     */
    private static long hammer(RLock lock, String file, long ms, long leaseMs) throws Exception {
        Path counter = Path.of(file);
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ms);
        long sections = 0;
        while (System.nanoTime() - end < 0) {
            acquire(lock, leaseMs);
            try {
                long before = Long.parseLong(Files.readString(counter).trim());
                Files.writeString(counter, Long.toString(before + 1));
                sections++;
            } finally {
                lock.unlock();
            }
        }
        return sections;
    }

    /** Sections of that many ms, one after the other: how many, and the longest wait for one in ms. */
    private static String turns(RLock lock, long section, long ms) throws Exception {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ms);
        long sections = 0;
        long longest = 0;
        for (long began = System.nanoTime(); began - end < 0; began = System.nanoTime()) {
            acquire(lock, WATCHDOG);
            try {
                longest = Math.max(longest, System.nanoTime() - began);
                sections++;
                Thread.sleep(section);
            } finally {
                lock.unlock();
            }
        }
        return sections + "-" + TimeUnit.NANOSECONDS.toMillis(longest);
    }

    // ---- read/write locks

    /** The readers' loop while others hammer. */
    private static long steady(RLock lock, String file, long ms, long leaseMs) throws Exception {
        Path counter = Path.of(file);
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ms);
        long sections = 0;
        while (System.nanoTime() - end < 0) {
            acquire(lock, leaseMs);
            try {
                String before = Files.readString(counter).trim();
                Thread.sleep(1);
                String after = Files.readString(counter).trim();
                if (before.isEmpty() || !before.equals(after)) {
                    throw new IllegalStateException("written while it was read: " + before + ", " + after);
                }
                sections++;
            } finally {
                lock.unlock();
            }
        }
        return sections;
    }

    // ----

    /** Runs the operation and sends its reply, one line. */
    private static boolean answer(PrintStream out, String id, Operation operation) {
        String result;
        boolean ok = true;
        long began = System.nanoTime();
        try {
            result = "ok " + operation.run();
        } catch (Throwable e) { // an Error needs a reply, too, or the test waits forever
            String message = e.getMessage() == null || e.getMessage().isEmpty() ? "-" : encode(e.getMessage());
            result = "err " + e.getClass().getSimpleName() + " " + message;
            ok = false;
        }
        long took = TimeUnit.NANOSECONDS.toMicros(System.nanoTime() - began);
        long wall = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
        // Each println is a single write under the stream's own lock, so replies never mix.
        out.println(id + " " + wall + " " + took + " " + result);
        return ok;
    }

    private static String encode(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8);
    }

    /** Ends at once, without running hooks, releasing locks or waiting for threads. */
    private static void halt(int status) {
        Runtime.getRuntime().halt(status);
    }

    /** A named thread and its queue. */
    private final class Worker extends Thread {
        final BlockingQueue<Request> queue = new LinkedBlockingQueue<>();

        /** Whether an operation is running; guarded by this. */
        private boolean busy;

        Worker(String name) {
            super(name);
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            while (true) {
                Request request;
                try {
                    request = queue.take();
                } catch (InterruptedException e) {
                    throw new AssertionError("interrupted outside an operation", e);
                }
                setBusy(true);
                answer(out, request.id, () -> {
                    try {
                        return request.operation.run();
                    } finally {
                        setBusy(false);
                    }
                });
            }
        }

        /** Clears a late interrupt together with the operation it was meant for. */
        private synchronized void setBusy(boolean now) {
            busy = now;
            Thread.interrupted();
        }

        /**
         * Only Redisson's waiters sleep in a semaphore, or in a latch's gate. A thread in there that is not yet in the queue
         * counts as running.
         */
        private boolean sleeps() {
            boolean waits = Arrays.stream(getStackTrace())
                    .anyMatch(f -> f.getClassName().equals(Semaphore.class.getName()) || f.getClassName().endsWith(".ReclosableLatch"));
            return waits && (getState() == State.WAITING || getState() == State.TIMED_WAITING);
        }

        /** Never interrupts an idle thread, which would affect its next operation. */
        private synchronized boolean interruptOperation() {
            if (busy) {
                interrupt();
            }
            return busy;
        }
    }

    /** The words after the operation. */
    private final class Arguments {
        private final String[] words;

        Arguments(String[] words) {
            this.words = words;
        }

        boolean has(int i) {
            return i + 3 < words.length;
        }

        private String word(int i) {
            if (!has(i)) {
                throw new IllegalArgumentException(words[2] + " wants more arguments");
            }
            return words[i + 3];
        }

        String text(int i) {
            return URLDecoder.decode(word(i), StandardCharsets.UTF_8);
        }

        long number(int i) {
            return Long.parseLong(word(i));
        }

        long lease(int i) {
            return has(i) ? number(i) : WATCHDOG;
        }

        RLock lock(int i) {
            return locks.get().computeIfAbsent(word(i), this::open);
        }

        /** By reflection, because the oldest versions lack this lock. */
        private RLock fenced(String name) {
            try {
                return (RLock) RedissonClient.class.getMethod("getFencedLock", String.class).invoke(redisson, name);
            } catch (ReflectiveOperationException e) {
                throw new IllegalArgumentException("no fenced locks", e);
            }
        }

        private RLock multi(String[] names) {
            RLock[] locks = new RLock[names.length];
            for (int i = 0; i < names.length; i++) {
                locks[i] = open(names[i]);
            }
            return redisson.getMultiLock(locks);
        }

        private RLock open(String word) {
            int slash = word.indexOf('/');
            String kind = slash < 0 ? "" : word.substring(0, slash);
            String name = URLDecoder.decode(word.substring(slash + 1), StandardCharsets.UTF_8);
            if (kind.equals("multi")) {
                return multi(word.substring(slash + 1).split(","));
            }
            return switch (kind) {
                case "" -> redisson.getLock(name);
                case "fenced" -> fenced(name);
                case "fair" -> redisson.getFairLock(name);
                case "read" -> redisson.getReadWriteLock(name).readLock();
                case "write" -> redisson.getReadWriteLock(name).writeLock();
                default -> throw new IllegalArgumentException("unknown kind " + kind);
            };
        }
    }
}
