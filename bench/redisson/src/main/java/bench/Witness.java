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
 * Memory that every critical section writes to, shared by all processes, so that two of them inside
 * together leave a trace. Each name has a slot of 64 bytes: the word of who is inside, 0 for nobody,
 * a counter that only the lock protects, for those who may be inside together how many are, and
 * how many sections they have passed, and how often a thread has said that it waits for a latch. Words are of 64 bits in the machine's byte order.
 */
final class Witness {

    private static final int SLOT = 64;
    private static final int COUNTER = 8;
    private static final int READERS = 16;
    private static final int READS = 24;
    private static final int WAITING = 32;

    /** How many may be inside together, beside a number of permits. */
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

    /** Maps the file at its size. The number of this process differs from that of all others. */
    static Witness open(String file, int process) throws IOException {
        try (FileChannel channel =
                FileChannel.open(Path.of(file), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            // The map lives on when the channel is closed.
            return new Witness(channel.map(FileChannel.MapMode.READ_WRITE, 0, channel.size()), process);
        }
    }

    /** One that no other process sees. */
    static Witness ofThisProcess(int slots) {
        return new Witness(ByteBuffer.allocateDirect(slots * SLOT), 0);
    }

    /** How many sections have left a trace, which the harness compares with the counters. */
    long sections() {
        return sections.sum();
    }

    /** How often another was inside. */
    long violations() {
        return violations.sum();
    }

    /** Whether a round of the latch in the first slot has begun, after that many others. */
    boolean closed(long rounds) {
        return (long) WORD.getVolatile(memory, 0) != 0 && (long) WORD.get(memory, COUNTER) == rounds;
    }

    /** How many have come through the latch, in all processes and rounds. */
    long through() {
        return (long) WORD.getVolatile(memory, READS);
    }

    /** What was said to it; negative when there are no more rounds. */
    long waiting() {
        return (long) WORD.getVolatile(memory, WAITING);
    }

    /** Says that n wait for the latch. */
    void addWaiting(long n) {
        WORD.getAndAdd(memory, WAITING, n);
    }

    /** Says that there are no more rounds; this stays negative whatever is added. */
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

    /** Somebody who goes in and out of one slot's section, one visit at a time. */
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

        /** There is room for so many. Says that it is there before it looks, so of two that may not meet one sees the other. */
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
         * Writes one more than was read at the entry: of two inside together, one addition is lost.
         * Who found an owner at the entry leaves it there.
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
