import java.util.List;
import java.util.Map;

/** A worker in Java. Its jobs have the payload {"seconds": N} and take that long. */
public final class Worker {
    record Work(double seconds) {}

    /** This is yours. It lets an interrupt end what it waits for, and gives job.leaseNo() to whatever it changes, so that
     * a worker which overslept its lease changes nothing. */
    static Object handle(LeaseholdWorker.Job job) {
        job.sleep(job.json(Work.class).seconds());
        return Map.of("fence", job.leaseNo());
    }

    static String env(String name, String otherwise) {
        var value = System.getenv(name);
        return value == null || value.isEmpty() ? otherwise : value;
    }

    public static void main(String[] args) {
        var worker = new LeaseholdWorker(List.of(env("LEASEHOLD_ADDRESS", "127.0.0.1:7070")), List.of(env("LEASEHOLD_QUEUE", "payments")), Worker::handle);
        worker.slots = Integer.parseInt(env("LEASEHOLD_SLOTS", "10"));
        Runtime.getRuntime().halt(worker.run());
    }
}
