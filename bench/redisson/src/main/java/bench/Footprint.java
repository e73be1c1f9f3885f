package bench;

import java.lang.management.ManagementFactory;
import java.util.LinkedHashMap;
import java.util.Map;

import com.sun.management.OperatingSystemMXBean;

/** The heap of this process in bytes, and its number of threads. */
record Footprint(double heap, double threads) {

    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    /** Collects garbage until none is left. Some is freed later, by other threads. */
    static Footprint measure() throws InterruptedException {
        double heap = collected();
        for (double before = Double.MAX_VALUE; before - heap > 1024; heap = collected()) {
            before = heap;
            Thread.sleep(200);
        }
        return new Footprint(heap, ManagementFactory.getThreadMXBean().getThreadCount());
    }

    private static double collected() {
        System.gc();
        return ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed();
    }

    /** The cost of each of n things, if nothing else was added since before. */
    Map<String, Double> perUnit(Footprint before, int n) {
        Map<String, Double> unit = new LinkedHashMap<>();
        unit.put("heap_bytes", (heap - before.heap) / n);
        unit.put("goroutines", (threads - before.threads) / n);
        return unit;
    }

    /** CPU time of this process so far, user and system, in ns. */
    static double cpuNs() {
        return SYSTEM.getProcessCpuTime();
    }
}
