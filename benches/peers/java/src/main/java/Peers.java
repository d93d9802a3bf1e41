import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.config.Config;

/**
 * The two locks of Redisson, and its permits, as workers of the benchmark: they speak the protocol
 * of ../src/protocol.rs. All options are at their defaults, except for the lease, which Redisson's
 * watchdog renews, unless it is that of a permit.
 */
public class Peers {
    /** Reentries that are timed together. */
    private static final int BATCH = 100;

    private static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));

    private final Function<String, RLock> locks;

    private Peers(Function<String, RLock> locks) {
        this.locks = locks;
    }

    /** What one thread did. */
    private static final class Turns {
        long inTime;
        long failures;
        final List<Long> waits = new ArrayList<>();
        final List<Long> cycles = new ArrayList<>();

        @Override
        public String toString() {
            return String.format("{\"in_time\":%d,\"waits\":%s,\"cycles\":%s,\"gave_up\":0,\"failures\":%d}",
                    inTime, waits, cycles, failures);
        }
    }

    /** CLOCK_MONOTONIC on Linux: the same in all processes. */
    private static long now() {
        return System.nanoTime();
    }

    /** Processor time of this process. */
    private static long cpu() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    /** Three permits. Only the scenarios in which threads take turns have them. */
    private static final class Permits extends Peers {
        private final Function<String, RPermitExpirableSemaphore> semaphores;
        private final long lease;

        Permits(Function<String, RPermitExpirableSemaphore> semaphores, long lease) {
            super(null);
            this.semaphores = semaphores;
            this.lease = lease;
        }

        @Override
        int slots() {
            return 3;
        }

        @Override
        void prepare(String key) {
            semaphores.apply(key).trySetPermits(slots());
        }

        @Override
        void turn(String key, Runnable inside) {
            RPermitExpirableSemaphore semaphore = semaphores.apply(key);
            String permit;
            try {
                permit = semaphore.acquire(lease, TimeUnit.MILLISECONDS);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
            try {
                inside.run();
            } finally {
                semaphore.release(permit);
            }
        }
    }

    /** How many can have it at a time. */
    int slots() {
        return 1;
    }

    /** What is done once for each key, before the clock starts. */
    void prepare(String key) {
    }

    void turn(String key, Runnable inside) {
        RLock lock = locks.apply(key);
        lock.lock();
        try {
            inside.run();
        } finally {
            lock.unlock();
        }
    }

    private void takeTurns(String key, double seconds, AtomicInteger inside, AtomicLong overlaps, Turns turns) {
        long end = now() + (long) (seconds * 1e9);
        long[] got = new long[1];
        for (long asked = now(); asked < end; asked = now()) {
            got[0] = 0;
            try {
                turn(key, () -> {
                    got[0] = now();
                    if (inside.getAndIncrement() >= slots()) {
                        overlaps.incrementAndGet();
                    }
                    inside.decrementAndGet();
                });
            } catch (RuntimeException error) {
                turns.failures++;
            }
            if (got[0] != 0) {
                turns.cycles.add(now() - asked);
                turns.waits.add(got[0] - asked);
                turns.inTime += got[0] <= end ? 1 : 0;
            }
        }
    }

    private void together(String key, int threads, double seconds) throws IOException, InterruptedException {
        prepare(key);
        CountDownLatch ready = new CountDownLatch(threads);
        CountDownLatch go = new CountDownLatch(1);
        AtomicInteger inside = new AtomicInteger();
        AtomicLong overlaps = new AtomicLong();
        List<Turns> all = new ArrayList<>();
        List<Thread> running = new ArrayList<>();
        for (int number = 0; number < threads; number++) {
            Turns turns = new Turns();
            all.add(turns);
            String own = key + ":" + number;
            Thread thread = new Thread(() -> {
                try {
                    // This turn opens the connections before the clock starts.
                    prepare(own);
                    turn(own, () -> {});
                } catch (RuntimeException error) {
                    turns.failures++;
                }
                ready.countDown();
                try {
                    go.await();
                    takeTurns(key, seconds, inside, overlaps, turns);
                } catch (InterruptedException error) {
                    turns.failures++;
                }
            });
            thread.start();
            running.add(thread);
        }
        ready.await();
        say("ready");
        INPUT.readLine();
        long used = cpu();
        go.countDown();
        for (Thread thread : running) {
            thread.join();
        }
        report(all, overlaps.get(), cpu() - used);
    }

    private static void report(List<Turns> threads, long overlaps, long cpu) {
        String each = threads.stream().map(Turns::toString).collect(Collectors.joining(","));
        say(String.format("{\"threads\":[%s],\"overlaps\":%d,\"cpu\":%d}", each, overlaps, cpu));
    }

    private void reentry(String key, double seconds) {
        Turns turns = new Turns();
        turn(key, () -> {
            say("ready");
            readLine();
            long used = cpu();
            long end = now() + (long) (seconds * 1e9);
            for (long began = now(); began < end; began = now()) {
                for (int pair = 0; pair < BATCH; pair++) {
                    turn(key, () -> {});
                }
                turns.cycles.add((now() - began) / BATCH);
                turns.inTime += BATCH;
            }
            report(List.of(turns), 0, cpu() - used);
        });
    }

    private static String readLine() {
        try {
            return INPUT.readLine();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void sayAt(String word, String detail) {
        say((word + " " + now() + " " + detail).trim());
    }

    /** Takes the lock, works, and asks now and then whether the lock is still held. */
    private void hold(String key, long wait, long work, long step) throws InterruptedException {
        RLock lock = locks.apply(key);
        sayAt("asks", "");
        try {
            if (!lock.tryLock(wait, TimeUnit.MILLISECONDS)) {
                sayAt("busy", "");
                return;
            }
        } catch (RuntimeException error) {
            sayAt("failed", error.toString().replace('\n', ' '));
            return;
        }
        sayAt("has", "");
        long end = now() + work * 1_000_000;
        while (true) {
            long asked = now();
            try {
                if (!lock.isHeldByCurrentThread()) {
                    sayAt("no", "");
                    break;
                }
                say("yes " + asked);
            } catch (RedisException error) {
                // It cannot say now.
            }
            long left = end - now();
            if (left <= 0) {
                break;
            }
            TimeUnit.NANOSECONDS.sleep(Math.min(left, step * 1_000_000));
        }
        sayAt("gives", "");
        String said = "ok";
        try {
            lock.unlock();
        } catch (IllegalMonitorStateException error) {
            said = "lost";
        } catch (RuntimeException error) {
            said = "unknown";
        }
        sayAt("gave", said);
    }

    private void obey(String[] command) throws IOException, InterruptedException {
        String key = command.length > 1 ? command[1] : "";
        long[] at = new long[1];
        switch (command[0]) {
            case "turns" -> together(key, Integer.parseInt(command[2]), Double.parseDouble(command[3]));
            case "reentry" -> reentry(key, Double.parseDouble(command[3]));
            case "take" -> {
                turn(key, () -> {
                    say("held");
                    readLine();
                    at[0] = now();
                });
                say("gave " + at[0]);
            }
            case "wait" -> {
                say("waiting");
                turn(key, () -> at[0] = now());
                say("got " + at[0]);
            }
            case "hold" -> hold(key, Long.parseLong(command[2]), Long.parseLong(command[3]), Long.parseLong(command[4]));
            case "cpu" -> say("cpu " + cpu());
            default -> throw new IllegalArgumentException("unknown command: " + command[0]);
        }
    }

    public static void main(String[] arguments) {
        if (arguments[0].equals("versions")) {
            String redisson = Redisson.class.getPackage().getImplementationVersion();
            say("Java " + System.getProperty("java.version") + ", Redisson " + redisson);
            return;
        }
        try {
            work(arguments[0], arguments[1], Long.parseLong(arguments[2]));
        } finally {
            // Redisson's threads would keep the process alive.
            System.exit(0);
        }
    }

    private static void work(String url, String peer, long lease) {
        Config config = new Config();
        config.setLockWatchdogTimeout(lease);
        config.useSingleServer().setAddress(url);
        RedissonClient client = Redisson.create(config);
        Peers peers = switch (peer) {
            case "redisson-permits" -> new Permits(client::getPermitExpirableSemaphore, lease);
            case "redisson-fair" -> new Peers(client::getFairLock);
            default -> new Peers(client::getLock);
        };
        say("ready");
        for (String line = readLine(); line != null; line = readLine()) {
            try {
                peers.obey(line.split(" "));
            } catch (Exception | LinkageError error) {
                say("failed " + error);
            }
        }
    }
}
