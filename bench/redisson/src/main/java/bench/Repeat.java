package bench;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

import org.redisson.api.RedissonClient;

import bench.Worker.Options;
import bench.Worker.Result;

/** All workloads whose threads lock and unlock. */
final class Repeat extends Workload {
    private final Kind kind;
    private final boolean ownNames;
    private Sections sections;

    Repeat(Options options, Kind kind, boolean ownNames) throws IOException {
        super(options);
        this.kind = kind;
        this.ownNames = ownNames;
    }

    @Override
    void prepare() throws InterruptedException {
        RedissonClient[] clients = new RedissonClient[options.clients()];
        Arrays.setAll(clients, i -> i == 0 ? redisson : connect());
        warmUp(kind, clients);
        String name = ownNames ? options.name() + ":" + options.worker() : options.name();
        sections = new Sections(kind, List.of(clients), witness, options.clients() * options.goroutines(), ownNames, name,
                options.section());
    }

    @Override
    Result run() throws InterruptedException {
        double cpu = Footprint.cpuNs();
        stuck = sections.during(options.duration());
        Map<String, Double> extra = Map.of("cpu_ns", Footprint.cpuNs() - cpu);
        long[] ops = sections.ops();
        return result(Arrays.stream(ops).sum(), options.duration().toNanos(), sections.latency, ops, extra);
    }
}
