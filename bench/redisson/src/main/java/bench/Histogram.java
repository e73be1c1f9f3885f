package bench;

import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.LongAccumulator;

/**
 * Counts durations in ns, in 32 buckets per power of two. Recording takes an index and an addition; a
 * quantile is off by at most 2 %. Any thread may record.
 */
final class Histogram {

    private static final int BITS = 5;
    private static final int SUB_BUCKETS = 1 << BITS;

    private final AtomicLongArray buckets = new AtomicLongArray(bucket(Long.MAX_VALUE) + 1);
    private final LongAccumulator max = new LongAccumulator(Math::max, 0);

    void record(long nanos) {
        buckets.getAndIncrement(bucket(Math.max(nanos, 0)));
        max.accumulate(nanos);
    }

    /** Below 64 a bucket is one value, then each power of two has buckets twice as wide. */
    private static int bucket(long nanos) {
        int shift = Math.max(63 - Long.numberOfLeadingZeros(nanos) - BITS, 0);
        return shift * SUB_BUCKETS + (int) (nanos >>> shift);
    }

    private static long middle(int bucket) {
        int shift = Math.max(bucket / SUB_BUCKETS - 1, 0);
        long low = (long) (bucket - shift * SUB_BUCKETS) << shift;
        return low + (1L << shift) / 2;
    }

    long max() {
        return max.get();
    }

    /** The q-quantile of the durations; 0 if there are none. */
    long quantile(double q) {
        long total = 0;
        for (int i = 0; i < buckets.length(); i++) {
            total += buckets.get(i);
        }
        long rank = (long) Math.ceil(q * total);
        long seen = 0;
        for (int i = 0; i < buckets.length() && total > 0; i++) {
            seen += buckets.get(i);
            if (seen >= rank) {
                return Math.min(middle(i), max());
            }
        }
        return 0;
    }
}
