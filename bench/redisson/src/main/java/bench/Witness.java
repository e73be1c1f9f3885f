package bench;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.atomic.LongAdder;

/**
 * Memory shared by all processes, to which every critical section writes, so that overlapping sections
 * leave a trace. Each name has a slot of 64 bytes, in words of 64 bits in the machine's byte order: who is
 * inside, 0 for nobody; a counter that only the lock protects; for shared visitors, how many are inside, and
 * how many sections they have passed; and how often a thread has reported that it waits for a latch.
 */
final class Witness {

    private static final int SLOT = 64;
    private static final int COUNTER = 8;
    private static final int READERS = 16;
    private static final int READS = 24;
    private static final int WAITING = 32;

    /** A visitor's room, if it is not a number of permits. */
    static final long ALONE = 1;
    static final long TOGETHER = Long.MAX_VALUE;
    private static final VarHandle WORD =
            MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.nativeOrder());

    private final ByteBuffer memory;
    private final int process;
    private final LongAdder sections = new LongAdder();
    private final LongAdder violations = new LongAdder();

    private Witness(ByteBuffer memory, int process) {
        this.memory = memory;
        this.process = process;
    }

    /** Maps the whole file. Each process has a different number. */
    static Witness open(String file, int process) throws IOException {
        try (FileChannel channel =
                FileChannel.open(Path.of(file), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            // The map remains valid when the channel is closed.
            return new Witness(channel.map(FileChannel.MapMode.READ_WRITE, 0, channel.size()), process);
        }
    }

    /** A witness for this process alone. */
    static Witness ofThisProcess(int slots) {
        return new Witness(ByteBuffer.allocateDirect(slots * SLOT), 0);
    }

    /** The number of sections that left a trace; the harness compares it with the counters. */
    long sections() {
        return sections.sum();
    }

    /** How often another thread was inside. */
    long violations() {
        return violations.sum();
    }

    /** Whether a round of the latch in the first slot has begun, after that many earlier rounds. */
    boolean closed(long rounds) {
        return (long) WORD.getVolatile(memory, 0) != 0 && (long) WORD.get(memory, COUNTER) == rounds;
    }

    /** How many threads have come through the latch, in all processes and rounds. */
    long through() {
        return (long) WORD.getVolatile(memory, READS);
    }

    /** The number of reported waits; negative when there are no more rounds. */
    long waiting() {
        return (long) WORD.getVolatile(memory, WAITING);
    }

    /** Reports n threads that wait for the latch. */
    void addWaiting(long n) {
        WORD.getAndAdd(memory, WAITING, n);
    }

    /** Ends the rounds: the number stays negative, whatever is added. */
    void noMore() {
        WORD.setVolatile(memory, WAITING, Long.MIN_VALUE / 2);
    }

    /** Each thread of this process has its own number, from 0. */
    Visitor visitor(int slot, int thread) {
        if ((slot + 1) * SLOT > memory.capacity()) {
            throw new IllegalArgumentException("the witness has no slot " + slot);
        }
        return new Visitor(slot * SLOT, (process + 1L) << 32 | (thread + 1L));
    }

    /** A visitor of one slot's section, one visit at a time. */
    final class Visitor {
        private final int slot;

        /** Never 0. */
        private final long id;

        private boolean shared;
        private boolean owner;
        private long seen;

        private Visitor(int slot, long id) {
            this.slot = slot;
            this.id = id;
        }

        /** There is room for that many. It registers before it looks, so of two visitors that may not meet, one sees the other. */
        void enter(long room) {
            shared = room > ALONE;
            if (shared) {
                long others = (long) WORD.getAndAdd(memory, slot + READERS, 1L);
                if (others >= room || (long) WORD.getVolatile(memory, slot) != 0) {
                    violations.increment();
                }
                return;
            }
            owner = WORD.compareAndSet(memory, slot, 0L, id);
            if (!owner || (long) WORD.getVolatile(memory, slot + READERS) != 0) {
                violations.increment();
            }
            seen = (long) WORD.get(memory, slot + COUNTER);
        }

        /**
         * Writes the value read at the entry plus one: if two are inside together, one addition is lost. A visitor
         * that found an owner at the entry leaves that owner there.
         */
        void leave() {
            sections.increment();
            if (shared) {
                WORD.getAndAdd(memory, slot + READS, 1L);
                WORD.getAndAdd(memory, slot + READERS, -1L);
                return;
            }
            WORD.set(memory, slot + COUNTER, seen + 1);
            if (owner && (long) WORD.compareAndExchangeRelease(memory, slot, id, 0L) != id) {
                violations.increment();
            }
        }
    }
}
