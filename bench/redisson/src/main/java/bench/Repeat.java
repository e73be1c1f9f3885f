package bench;

import java.io.IOException;
import java.util.Map;

import bench.Worker.Options;
import bench.Worker.Result;

/** pair, names, contended and local. */
final class Repeat extends Workload {
    private final boolean ownNames;
    private Sections sections;

    Repeat(Options options, boolean ownNames) throws IOException {
        super(options);
        this.ownNames = ownNames;
    }

    @Override
    void prepare() throws InterruptedException {
        warmUp(redisson);
        String name = ownNames ? options.name() + ":" + options.worker() : options.name();
        sections = new Sections(redisson, witness, options.goroutines(), ownNames, name);
    }

    @Override
    Result run() throws InterruptedException {
        double cpu = Footprint.cpuNs();
        sections.during(options.duration());
        Map<String, Double> extra = Map.of("cpu_ns", Footprint.cpuNs() - cpu);
        long ops = 0;
        for (long n : sections.ops) {
            ops += n;
        }
        return result(ops, options.duration().toNanos(), sections.latency, sections.ops, extra);
    }
}
