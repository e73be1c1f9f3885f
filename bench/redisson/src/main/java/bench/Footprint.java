package bench;

import java.lang.management.ManagementFactory;
import java.util.LinkedHashMap;
import java.util.Map;

import com.sun.management.OperatingSystemMXBean;

/** What this process has on its heap, in bytes, and its threads. */
record Footprint(double heap, double threads) {

    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    /** Collects garbage until none is left: what another thread has to clean up goes a little later. */
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

    /** What each of n things costs, if they are all that came since before. */
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
