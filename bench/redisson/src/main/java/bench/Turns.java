package bench;

import java.io.IOException;
import java.util.Map;

import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

import bench.Worker.Options;
import bench.Worker.Result;

/** Two clients, as if of two processes, pass a section in turn: neither wants the lock while the other has it. */
final class Turns extends Workload {
    private final RedissonClient second = connect();
    private final Histogram latency = new Histogram();

    Turns(Options options) throws IOException {
        super(options);
    }

    @Override
    void prepare() throws InterruptedException {
        warmUp(Kind.PLAIN, redisson, second);
    }

    @Override
    Result run() {
        double cpu = Footprint.cpuNs();
        RLock[] locks = {redisson.getLock(options.name()), second.getLock(options.name())};
        Witness.Visitor visitor = witness.visitor(0, 0);
        long ops = 0;
        long start = System.nanoTime();
        for (long end = start + options.duration().toNanos(); System.nanoTime() - end < 0; ops++) {
            RLock lock = locks[(int) (ops % locks.length)];
            long before = System.nanoTime();
            lock.lock();
            visitor.enter(Witness.ALONE);
            visitor.leave();
            lock.unlock();
            latency.record(System.nanoTime() - before);
        }
        long elapsed = System.nanoTime() - start;
        return result(ops, elapsed, latency, new long[0], Map.of("cpu_ns", Footprint.cpuNs() - cpu));
    }
}
