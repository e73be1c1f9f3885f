package bench;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

import org.redisson.api.RedissonClient;

import bench.Worker.Options;
import bench.Worker.Result;

/** pair, names, contended, local, herd and asymmetric. */
final class Repeat extends Workload {
    private final boolean ownNames;
    private Sections sections;

    Repeat(Options options, boolean ownNames) throws IOException {
        super(options);
        this.ownNames = ownNames;
    }

    @Override
    void prepare() throws InterruptedException {
        RedissonClient[] clients = new RedissonClient[options.clients()];
        Arrays.setAll(clients, i -> i == 0 ? redisson : connect());
        warmUp(clients);
        String name = ownNames ? options.name() + ":" + options.worker() : options.name();
        sections = new Sections(List.of(clients), witness, options.clients() * options.goroutines(), ownNames, name,
                options.section());
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
