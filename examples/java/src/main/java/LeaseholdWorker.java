import com.google.gson.Gson;
import com.google.protobuf.ByteString;
import com.google.protobuf.Duration;
import com.google.protobuf.Message;
import com.google.rpc.RetryInfo;
import dev.leasehold.v1.*;
import io.grpc.*;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.ClientCalls;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.BooleanSupplier;

/**
 * A worker runtime for Leasehold in one file: copy it next to your program.
 *
 * <pre>{@code
 * var worker = new LeaseholdWorker(List.of("127.0.0.1:7070"), List.of("payments"), job -> {
 *     job.stage("psp_call");                            // recorded; throws where the lease is not ours any more
 *     settle(job.json(Payment.class), job.leaseNo());   // interrupted once the lease is lost
 *     return Map.of("settled", true);                   // kept as the job's result
 * });
 * worker.slots = 10;
 * System.exit(worker.run());
 * }</pre>
 *
 * A handler returns: the job is completed. It throws: the job has failed and runs again after its backoff;
 * Failure says more about that, and Release gives the job back without using an attempt. The handler's thread is
 * interrupted once the lease is lost, in doubt, or to be given back; job.cause() says which.
 *
 * <p>Threads: one leases, one sends the heartbeats of all leases, one for each job. They share one lock, the worker.
 * Heartbeats have connections of their own and are not waited for: one that hangs holds up no other.
 */
public final class LeaseholdWorker {
    static final double POLL_SLACK = 5; // seconds that the deadline of a poll leaves for the way
    static final double END_TIMEOUT = 10; // seconds for one Complete, Fail or Release
    static final double LATE_COMPLETE = 60; // seconds after its lease for which a Complete is tried: nobody else may have begun
    static final int BATCH_ITEMS = 1000, BATCH_BYTES = 3 << 20; // of one call; the contract's bounds are 1,000 and 4 MiB
    static final int TEXT_MOST = 16 << 10, STAGE_MOST = 128, CHECKPOINT_MOST = 64 << 10; // bytes
    static final Gson GSON = new Gson();

    /** The work. What it returns is kept as the job's result, as JSON; null for none. */
    public interface Handler { Object handle(Job job) throws Exception; }

    /** The handler must stop. An Error, so that "catch (Exception e)" does not go on regardless. */
    public abstract static class Cancelled extends Error {
        Cancelled(String why) { super(why, null, false, false); }
    }
    /** The service said that the lease is over: LEASE_SUPERSEDED, LEASE_EXPIRED, LEASE_ENDED, … */
    public static final class LeaseLost extends Cancelled { LeaseLost(String why) { super(why); } }
    /** The lease could not be renewed in time: as far as this process knows it may be another's. */
    public static final class LeaseExpired extends Cancelled { LeaseExpired(String why) { super(why); } }
    /** Somebody cancelled the job. The lease is still ours: tidy up, then let this pass. */
    public static final class CancelRequested extends Cancelled { CancelRequested(String why) { super(why); } }
    /** The worker ends and its grace is over. The job is given back. */
    public static final class ShuttingDown extends Cancelled { ShuttingDown() { super("the worker shuts down"); } }

    /** Gives the job back without using an attempt, to run again after a delay in seconds. */
    public static final class Release extends Exception {
        final double delay;
        public Release(double delay) { super("released, to run again after " + delay + " s"); this.delay = delay; }
    }

    /** Fails the job with more than a message. permanent: never try again; retryAfter: seconds, or null for the backoff. */
    public static final class Failure extends Exception {
        final String code; final boolean permanent; final Double retryAfter;
        public Failure(String message, String code, boolean permanent, Double retryAfter) {
            super(message);
            this.code = code; this.permanent = permanent; this.retryAfter = retryAfter;
        }
    }

    /** What a call, or one item of a batch, was answered instead of OK. */
    static final class CallError extends Exception {
        static final Set<String> OVER = Set.of("LEASE_SUPERSEDED", "LEASE_EXPIRED", "LEASE_ENDED", "JOB_NOT_FOUND", "INVALID_TOKEN");
        static final Set<String> ELSEWHERE = Set.of("DATABASE_UNAVAILABLE", "DRAINING", "OVERLOADED");
        static final Set<Status.Code> FINAL = EnumSet.of(Status.Code.INVALID_ARGUMENT, Status.Code.NOT_FOUND, Status.Code.ALREADY_EXISTS,
            Status.Code.FAILED_PRECONDITION, Status.Code.OUT_OF_RANGE, Status.Code.UNIMPLEMENTED);
        static final Set<Status.Code> NO_ANSWER = EnumSet.of(Status.Code.UNKNOWN, Status.Code.DEADLINE_EXCEEDED, Status.Code.INTERNAL, Status.Code.UNAVAILABLE);
        static final Metadata.Key<String> REASON = Metadata.Key.of("leasehold-reason", Metadata.ASCII_STRING_MARSHALLER);
        final Status.Code code; final String reason; final double retryAfter;
        final boolean over; // the lease is not ours any more
        final boolean last; // trying again, unchanged, cannot help
        final boolean elsewhere; // another replica may do better

        CallError(Status.Code code, String reason, String message, double retryAfter) {
            super((reason.isEmpty() ? code : reason) + ": " + message);
            this.code = code; this.reason = reason; this.retryAfter = retryAfter;
            // gRPC itself gives no reason for a message that is too big.
            last = FINAL.contains(code) || code == Status.Code.RESOURCE_EXHAUSTED && reason.isEmpty();
            over = OVER.contains(reason) || reason.isEmpty() && (code == Status.Code.NOT_FOUND || code == Status.Code.FAILED_PRECONDITION);
            elsewhere = ELSEWHERE.contains(reason) || reason.isEmpty() && NO_ANSWER.contains(code);
        }

        static CallError of(Throwable t) {
            var status = Status.fromThrowable(t);
            var trailers = Status.trailersFromThrowable(t);
            var reason = trailers == null ? null : trailers.get(REASON);
            double retryAfter = 0;
            try {
                var rich = StatusProto.fromThrowable(t);
                for (var detail : rich == null ? List.<com.google.protobuf.Any>of() : rich.getDetailsList()) {
                    if (detail.is(RetryInfo.class)) retryAfter = seconds(detail.unpack(RetryInfo.class).getRetryDelay());
                }
            } catch (IOException | IllegalArgumentException e) {
                retryAfter = 0; // a proxy has changed it: the code and the reason decide
            }
            return new CallError(status.getCode(), reason == null ? "" : reason, String.valueOf(status.getDescription()), retryAfter);
        }

        static CallError of(ItemError e) {
            // UNRECOGNIZED is of a service that is newer than this: the code decides.
            var reason = e.getReason() == ErrorReason.UNRECOGNIZED ? "" : e.getReason().name().replaceFirst("^ERROR_REASON_(UNSPECIFIED)?", "");
            return new CallError(Status.fromCodeValue(e.getCode()).getCode(), reason, e.getMessage(), seconds(e.getRetryAfter()));
        }
    }

    // The methods of the API that a worker calls.
    static <Q extends Message, A extends Message> MethodDescriptor<Q, A> method(String name, Q request, A answer) {
        return MethodDescriptor.<Q, A>newBuilder().setType(MethodDescriptor.MethodType.UNARY)
            .setFullMethodName(MethodDescriptor.generateFullMethodName("leasehold.v1.LeaseService", name))
            .setRequestMarshaller(ProtoUtils.marshaller(request)).setResponseMarshaller(ProtoUtils.marshaller(answer)).build();
    }
    static final MethodDescriptor<AcquireLeaseRequest, AcquireLeaseResponse> ACQUIRE =
        method("AcquireLease", AcquireLeaseRequest.getDefaultInstance(), AcquireLeaseResponse.getDefaultInstance());
    static final MethodDescriptor<BatchHeartbeatRequest, BatchHeartbeatResponse> BEAT =
        method("BatchHeartbeat", BatchHeartbeatRequest.getDefaultInstance(), BatchHeartbeatResponse.getDefaultInstance());
    static final MethodDescriptor<CompleteRequest, CompleteResponse> COMPLETE =
        method("Complete", CompleteRequest.getDefaultInstance(), CompleteResponse.getDefaultInstance());
    static final MethodDescriptor<FailRequest, FailResponse> FAIL = method("Fail", FailRequest.getDefaultInstance(), FailResponse.getDefaultInstance());
    static final MethodDescriptor<ReleaseRequest, ReleaseResponse> RELEASE =
        method("Release", ReleaseRequest.getDefaultInstance(), ReleaseResponse.getDefaultInstance());

    /** Connections that lead to the same service, for one kind of calls. After a failure the next one is used. */
    static final class Lane {
        final List<ManagedChannel> channels = new ArrayList<>();
        private int at;

        Lane(List<String> addresses, ChannelCredentials credentials) {
            var all = new ArrayList<>(addresses);
            if (all.size() == 1) all.add(all.get(0)); // behind a balancer the second leads elsewhere
            for (var address : all) {
                channels.add(Grpc.newChannelBuilder(address, credentials).defaultLoadBalancingPolicy("round_robin")
                    .keepAliveTime(10, TimeUnit.SECONDS).keepAliveTimeout(5, TimeUnit.SECONDS).keepAliveWithoutCalls(true).build());
            }
            at = ThreadLocalRandom.current().nextInt(all.size()); // so that each replica has its share
        }

        synchronized ManagedChannel pick() { return channels.get(at); }

        synchronized void failed(ManagedChannel channel, CallError error) {
            if (error != null && !error.elsewhere) return;
            channel.resetConnectBackoff(); // gRPC's own pauses grow to 2 minutes
            if (channel == channels.get(at)) at = (at + 1) % channels.size();
        }

        static <Q, A> Future<A> start(ManagedChannel channel, MethodDescriptor<Q, A> method, Q request, double timeout) {
            var options = CallOptions.DEFAULT.withDeadlineAfter((long) (timeout * 1e9), TimeUnit.NANOSECONDS);
            return ClientCalls.futureUnaryCall(channel.newCall(method, options), request);
        }

        static <A> A result(Future<A> call) throws CallError {
            for (boolean interrupted = false; ; ) {
                try {
                    var answer = call.get();
                    if (interrupted) Thread.currentThread().interrupt();
                    return answer;
                } catch (InterruptedException e) {
                    interrupted = true; // whoever wants the answer to be over cancels the call
                } catch (ExecutionException e) {
                    throw CallError.of(e.getCause());
                } catch (CancellationException e) {
                    throw new CallError(Status.Code.CANCELLED, "", "cancelled", 0);
                }
            }
        }
    }

    /** One lease, from its grant until its end is answered. All of it is under the worker's lock. */
    static final class Lease {
        final dev.leasehold.v1.Lease granted;
        double asked; // when the newest heartbeat that was answered had been sent
        double interval, endAt, stopAt, beatAt, sent;
        boolean beats = true; // no longer once it is lost, or its Fail or Release is on its way
        int under, tries; // heartbeats under way, and those since the last answer
        ManagedChannel way; // of the last heartbeat
        Cancelled cause; // why the handler must stop
        String lost; // the reason, where the service said so
        Thread thread; // of the handler, while it runs
        HeartbeatRequest.Builder note = HeartbeatRequest.newBuilder();
        int version, recorded, owed;
        CallError refused;

        Lease(dev.leasehold.v1.Lease granted, double since) {
            this.granted = granted;
            asked = since;
            renew(since, seconds(granted.getRemaining()), seconds(granted.getNextHeartbeatIn()));
        }

        String jobID() { return granted.getJob().getJobId(); }

        /** Notes how much remained of the lease at a time when it was not yet asked for. */
        void renew(double since, double remaining, double advice) {
            interval = Math.max(0.1, advice > 0 && advice <= remaining / 2 ? advice : remaining / 3);
            endAt = since + remaining;
            // The handler needs time to notice, and what it sent last needs time to arrive.
            stopAt = endAt - Math.min(remaining / 10, 3);
            beatAt = since + interval;
            tries = 0;
        }

        /** How long to wait for an answer before the next heartbeat is sent beside it. */
        double gap(double now) {
            double gap = Math.min(Math.max(interval / 3, 0.1), 2);
            if (stopAt > now) gap = Math.min(gap, (stopAt - now) / 3);
            return Math.max(gap, 0.1) * (0.8 + ThreadLocalRandom.current().nextDouble() / 5);
        }

        void cancel(Cancelled why) {
            if (cause == null) { // the first one counts
                cause = why;
                if (thread != null) thread.interrupt();
            }
        }

        /** Looks at the clock itself: a process that was stopped may come here before the heartbeats do. */
        Cancelled look() {
            if (cause == null && clock() >= stopAt) cancel(new LeaseExpired("the lease of job " + jobID() + " was not renewed in time"));
            return cause;
        }
    }

    /** One job, as its handler sees it. */
    public final class Job {
        private final Lease lease;
        /** EnqueueRequests that are enqueued in the transaction that completes the job. */
        public final List<EnqueueRequest> thenEnqueue = new ArrayList<>();

        Job(Lease lease) { this.lease = lease; }

        /** All that the service says of the lease: job, queue, attempt, last stage and checkpoint. */
        public dev.leasehold.v1.Lease details() { return lease.granted; }
        public String id() { return lease.jobID(); }
        /** The fencing number: give it to every system that the work changes. */
        public long leaseNo() { return lease.granted.getLeaseNo(); }
        /** The payload as JSON. */
        public <T> T json(Class<T> type) { return GSON.fromJson(details().getJob().getPayload().getJson(), type); }
        public ByteString bytes() { return details().getJob().getPayload().getData(); }

        /** Why the handler must stop; null while it may go on. */
        public Cancelled cause() { synchronized (LeaseholdWorker.this) { return lease.look(); } }

        /** Throws where the handler must stop. */
        public void check() { var why = cause(); if (why != null) throw why; }

        /** Sleeps; throws at once when the handler must stop. */
        public void sleep(double seconds) {
            try {
                Thread.sleep((long) (seconds * 1000));
            } catch (InterruptedException e) {
                check();
                Thread.currentThread().interrupt();
            }
            check();
        }

        /** Says how far the work is, 0..1, by the next heartbeat. It does not wait. */
        public void progress(double done) { report(lease, HeartbeatRequest.newBuilder().setProgress(Math.min(Math.max(done, 0), 1)), false); }

        /** Says where the work is, at most 128 bytes, and returns when that is recorded: the step behind it begins while
         * the lease is surely held. */
        public void stage(String stage) throws InterruptedException {
            if (stage.getBytes(StandardCharsets.UTF_8).length > STAGE_MOST) throw new IllegalArgumentException("a stage has at most " + STAGE_MOST + " bytes");
            await(report(lease, HeartbeatRequest.newBuilder().setStage(stage), true));
        }

        /** Leaves bytes, at most 64 KiB, to the next lease; returns when they are stored. */
        public void checkpoint(ByteString state) throws InterruptedException {
            if (state.size() > CHECKPOINT_MOST) throw new IllegalArgumentException("a checkpoint has at most " + CHECKPOINT_MOST + " bytes");
            await(report(lease, HeartbeatRequest.newBuilder().setCheckpoint(state), true));
        }

        private void await(int version) throws InterruptedException {
            synchronized (LeaseholdWorker.this) {
                while (lease.look() == null && lease.recorded < version) {
                    if (lease.refused != null) throw new IllegalArgumentException(lease.refused.getMessage());
                    LeaseholdWorker.this.wait(1000);
                }
            }
            check();
        }
    }

    /** Most jobs that are held at once. */
    public int slots = 10;
    /** Name of this worker in the history of leases. */
    public String owner = hostname() + "/" + ProcessHandle.current().pid() + "-" + UUID.randomUUID().toString().substring(0, 6);
    /** Seconds that a dead worker's jobs stay where they are; null: the queue's. */
    public Double lease;
    /** Seconds that a poll waits for a job, and for which handlers may go on after SIGTERM; the worker ends within 8 s more. */
    public double wait = 20, grace = 20;

    private final List<String> queues;
    private final Handler handler;
    private final Lane polls, beats, calls;
    private final ExecutorService handlers = Executors.newCachedThreadPool(daemons("job"));
    private final Map<String, Lease> leases = new LinkedHashMap<>();
    private final Set<Lease> running = new LinkedHashSet<>();
    private boolean draining;
    private int signals, failures;
    private Future<?> poll;

    /** addresses: give all replicas, or a name that resolves to all. */
    public LeaseholdWorker(List<String> addresses, List<String> queues, Handler handler) { this(addresses, queues, handler, InsecureChannelCredentials.create()); }

    public LeaseholdWorker(List<String> addresses, List<String> queues, Handler handler, ChannelCredentials credentials) {
        this.queues = List.copyOf(queues);
        this.handler = handler;
        polls = new Lane(addresses, credentials);
        beats = new Lane(addresses, credentials);
        calls = new Lane(addresses, credentials);
    }

    // Leasing

    private void leaseLoop() {
        for (int free; (free = awaitSlots()) > 0; ) {
            try {
                acquire(free);
            } catch (RuntimeException e) {
                log("leasing failed: " + e);
                until(() -> draining, 1); // the worker must come back
            }
        }
    }

    private synchronized int awaitSlots() {
        until(() -> draining || leases.size() < slots, Double.POSITIVE_INFINITY);
        return draining ? 0 : Math.min(slots - leases.size(), BATCH_ITEMS);
    }

    /** Makes one poll, and repeats it in the same words until it is answered: leases of an answer that was lost come again,
     * by the request id, and no others. */
    private void acquire(int free) {
        var request = AcquireLeaseRequest.newBuilder().addAllQueues(queues).setLeaseOwner(owner).setMaxJobs(free)
            .setWait(duration(wait)).setRequestId(UUID.randomUUID().toString());
        if (lease != null) request.setLeaseDuration(duration(lease));
        for (;;) {
            boolean last = isDraining(); // leases that are on their way are found, and given back
            if (last) request.clearWait();
            double began = clock(), pause = 0;
            int got = 0;
            CallError error = null;
            try {
                got = ask(request.build(), last ? 3 : wait + POLL_SLACK);
                failures = 0;
            } catch (CallError e) {
                error = e;
                pause = Math.max(backoff(failures++, 0.2, 10), e.retryAfter);
                if (!isDraining()) log("no leases: " + e.getMessage());
            }
            if (got == 0 && error == null && clock() - began < 1) pause = 1; // it should have waited
            until(() -> draining, pause);
            if (last || error == null || error.last) return;
        }
    }

    /** Makes one call, begins the leases that it brings, and returns how many they are. */
    private int ask(AcquireLeaseRequest request, double timeout) throws CallError {
        var channel = polls.pick();
        double sent = clock();
        Future<AcquireLeaseResponse> call;
        synchronized (this) {
            call = Lane.start(channel, ACQUIRE, request, timeout);
            poll = call;
            if (draining && request.hasWait()) call.cancel(true);
        }
        try {
            var answer = Lane.result(call);
            double since = sent + seconds(answer.getWaited());
            for (var granted : answer.getLeasesList()) {
                var one = new Lease(granted, since);
                synchronized (this) {
                    leases.put(granted.getLeaseToken(), one);
                    running.add(one);
                    notifyAll();
                }
                handlers.execute(() -> work(one));
            }
            return answer.getLeasesCount();
        } catch (CallError e) {
            polls.failed(channel, e);
            throw e;
        }
    }

    // Heartbeats

    private void beatLoop() {
        for (;;) {
            synchronized (this) {
                double pause;
                try {
                    pause = beat();
                } catch (RuntimeException e) {
                    log("heartbeats failed: " + e); // all leases depend on this thread
                    pause = 0.5;
                }
                pauseOn(pause);
            }
        }
    }

    /** Does what is due, and returns after how many seconds to look again. */
    private double beat() {
        double now = clock();
        running.forEach(Lease::look);
        var beating = leases.values().stream().filter(l -> l.beats).toList();
        if (beating.stream().anyMatch(l -> l.beatAt <= now)) {
            // Those that are due soon go along, so that all leases beat in one call.
            send(beating.stream().filter(l -> l.beatAt <= now + (l.tries > 0 ? 0 : l.interval / 2)).toList(), now);
        }
        // At least each second: timers stand still while the machine sleeps, clock() does not.
        double next = now + 1;
        for (var l : running) if (l.cause == null) next = Math.min(next, l.stopAt);
        for (var l : beating) next = Math.min(next, l.beatAt);
        return Math.max(next - clock(), 0);
    }

    private record Beat(Lease lease, int version) {}

    /** Starts one call for as many leases as it holds, and does not wait for it. */
    private void send(List<Lease> due, double now) {
        for (var l : due) {
            if (l.under > 0 && now - l.sent > 0.1) beats.failed(l.way, null); // no answer for so long: the next goes by another
        }
        var channel = beats.pick();
        var request = BatchHeartbeatRequest.newBuilder();
        var batch = new ArrayList<Beat>();
        int bytes = 0;
        double timeout = 10;
        for (var l : due.subList(0, Math.min(due.size(), BATCH_ITEMS))) {
            var item = (l.owed > 0 ? l.note.clone() : HeartbeatRequest.newBuilder()).setLeaseToken(l.granted.getLeaseToken()).build();
            bytes += item.getSerializedSize() + 8;
            if (!batch.isEmpty() && bytes > BATCH_BYTES) break;
            request.addItems(item);
            batch.add(new Beat(l, l.version));
            if (l.owed > 0 && l.tries > 0) l.owed = 3; // an older sending may still arrive, behind newer ones, and undo them
            l.under++;
            l.tries++;
            l.way = channel;
            l.sent = now;
            l.beatAt = now + l.gap(now);
            timeout = Math.min(timeout, Math.max(l.interval, 0.5));
        }
        var call = (com.google.common.util.concurrent.ListenableFuture<BatchHeartbeatResponse>) Lane.start(channel, BEAT, request.build(), timeout);
        call.addListener(() -> beaten(call, channel, batch, now), Runnable::run);
    }

    private synchronized void beaten(Future<BatchHeartbeatResponse> call, ManagedChannel channel, List<Beat> batch, double sent) {
        List<BatchHeartbeatResult> results = List.of();
        CallError error = null;
        try {
            results = Lane.result(call).getResultsList();
            if (results.size() != batch.size()) error = new CallError(Status.Code.INTERNAL, "", "a batch with too few results", 0);
        } catch (CallError e) {
            error = e;
        }
        if (error != null) {
            log("heartbeat of " + batch.size() + " leases failed: " + error.getMessage());
            beats.failed(channel, error);
        }
        for (int i = 0; i < batch.size(); i++) {
            var l = batch.get(i).lease;
            int version = batch.get(i).version;
            l.under--;
            if (error != null) {
                again(l, error);
            } else if (results.get(i).hasOk()) {
                renewed(l, version, results.get(i).getOk(), sent);
                if (results.get(i).getOk().getServerDraining()) beats.failed(channel, null);
            } else {
                refused(l, version, CallError.of(results.get(i).getError()));
            }
        }
        notifyAll();
    }

    private void renewed(Lease l, int version, HeartbeatResponse answer, double sent) {
        if (sent >= l.asked) {
            l.asked = sent;
            l.renew(sent, seconds(answer.getRemaining()), seconds(answer.getNextHeartbeatIn()));
        }
        l.recorded = Math.max(l.recorded, version);
        if (version == l.version && l.owed > 0 && --l.owed == 0) l.note.clear();
        if (answer.getCancelRequested()) l.cancel(new CancelRequested("somebody asked to cancel job " + l.jobID()));
    }

    private void refused(Lease l, int version, CallError error) {
        if (error.over) {
            l.beats = false;
            l.lost = error.reason.isEmpty() ? "LEASE_ENDED" : error.reason;
            l.cancel(new LeaseLost(error.getMessage()));
            return;
        }
        if (error.code == Status.Code.INVALID_ARGUMENT && version == l.version) { // what is out of bounds must not cost the lease
            l.note.clear();
            l.owed = 0;
            l.refused = error;
        }
        again(l, error);
    }

    private void again(Lease l, CallError error) {
        double now = clock();
        l.beatAt = Math.min(l.beatAt, now + Math.max(l.gap(now) / 2, Math.min(error.retryAfter, l.interval)));
    }

    /** Adds to what the next heartbeat carries, which is sent now where somebody waits for it. */
    private synchronized int report(Lease l, HeartbeatRequest.Builder what, boolean now) {
        l.note.mergeFrom(what.build());
        l.version++;
        l.owed = 1;
        l.refused = null;
        if (now) {
            l.beatAt = clock();
            notifyAll();
        }
        return l.version;
    }

    // Work and its end

    private void work(Lease l) {
        try {
            var end = run(new Job(l), l);
            synchronized (this) {
                l.thread = null;
                running.remove(l);
                notifyAll();
            }
            Thread.interrupted(); // that was for the handler
            if (end != null) end(l, end);
        } finally {
            synchronized (this) {
                l.thread = null;
                running.remove(l);
                leases.remove(l.granted.getLeaseToken());
                notifyAll();
            }
        }
    }

    /** Runs the handler, and says what to tell the service: a request, or null. */
    private Message run(Job job, Lease l) {
        var token = l.granted.getLeaseToken();
        Message end;
        try {
            synchronized (this) {
                if (draining) throw new ShuttingDown();
                l.thread = Thread.currentThread();
            }
            job.check(); // it may have run out on its way
            var result = handler.handle(job);
            var complete = CompleteRequest.newBuilder().setLeaseToken(token).addAllThenEnqueue(job.thenEnqueue);
            if (result != null) complete.setResult(Payload.newBuilder().setJson(GSON.toJson(result)).setContentType("application/json"));
            end = complete.build();
        } catch (Release e) {
            end = ReleaseRequest.newBuilder().setLeaseToken(token).setDelay(duration(e.delay)).build();
        } catch (Throwable e) { // an Error too: only the job has failed
            Cancelled cause;
            synchronized (this) { cause = l.cause; }
            // Behind an interrupt a driver has its own words for it.
            if (e instanceof Cancelled || cause != null && !(e instanceof Failure) && !(cause instanceof CancelRequested)) {
                log("job " + l.jobID() + ": cancelled: " + (cause == null ? e : cause).getMessage());
                end = ReleaseRequest.newBuilder().setLeaseToken(token).build();
            } else {
                log("job " + l.jobID() + " failed: " + e);
                end = failure(token, e);
            }
        }
        synchronized (this) {
            // Whatever is said would be refused, and counted as a second run.
            return l.lost != null && !(l.lost.equals("LEASE_EXPIRED") && end instanceof CompleteRequest) ? null : end;
        }
    }

    private Future<?> start(ManagedChannel channel, Message end) {
        if (end instanceof CompleteRequest r) return Lane.start(channel, COMPLETE, r, END_TIMEOUT);
        if (end instanceof FailRequest r) return Lane.start(channel, FAIL, r, END_TIMEOUT);
        return Lane.start(channel, RELEASE, (ReleaseRequest) end, END_TIMEOUT);
    }

    /** Tells the service how a lease ended, in the same words until it is answered. */
    private void end(Lease l, Message end) {
        boolean complete = end instanceof CompleteRequest;
        if (!complete) {
            // Behind the call that hands the job to somebody else a heartbeat would look as if the work ran twice. While
            // a Complete is not answered the lease beats on.
            synchronized (this) { l.beats = false; }
            until(() -> l.under == 0, 2);
        }
        for (int failures = 0; ; failures++) {
            var channel = calls.pick();
            try {
                Lane.result(start(channel, end));
                return;
            } catch (CallError e) {
                log(end.getDescriptorForType().getName() + " of job " + l.jobID() + ": " + e.getMessage());
                if (e.over || e.reason.equals("RESULT_CONFLICT")) return;
                if (e.last) {
                    // Without another word the lease would only run out.
                    if (complete) end(l, failure(l.granted.getLeaseToken(), new Failure(e.getMessage(), "result_refused", false, null)));
                    return;
                }
                double most;
                synchronized (this) { most = l.endAt + (complete ? LATE_COMPLETE : 0); }
                if (clock() >= most) return;
                calls.failed(channel, e);
                until(() -> false, Math.max(backoff(failures, 0.1, 5), e.retryAfter));
            }
        }
    }

    // Shutdown

    /**
     * Works until SIGTERM or SIGINT. Then no more jobs are leased; handlers may go on for the grace, and what they did not
     * finish is given back. A second signal cuts the grace short. Returns 0, or 1 where a handler did not return: its
     * lease runs out. Exit with it by halt, which does not wait for handlers.
     */
    public int run() {
        for (var name : List.of("TERM", "INT")) {
            sun.misc.Signal.handle(new sun.misc.Signal(name), s -> { synchronized (this) { signals++; notifyAll(); } });
        }
        daemons("heartbeats").newThread(this::beatLoop).start();
        var leasing = daemons("leasing").newThread(this::leaseLoop);
        leasing.start();
        log(owner + " leases from " + String.join(", ", queues));
        until(() -> signals > 0, Double.POSITIVE_INFINITY);
        synchronized (this) {
            draining = true;
            if (poll != null) poll.cancel(true);
            notifyAll();
        }
        until(() -> running.isEmpty() || signals > 1, grace);
        synchronized (this) { running.forEach(l -> l.cancel(new ShuttingDown())); }
        until(() -> !leasing.isAlive(), 5);
        until(() -> running.isEmpty(), 3);
        until(() -> leases.size() == running.size(), 5);
        synchronized (this) {
            leases.values().forEach(l -> l.beats = false); // a job whose work goes on is not given away: its lease runs out
            log("the worker ends; left behind: " + (leases.isEmpty() ? "nothing" : leases.values().stream().map(Lease::jobID).toList()));
            return leases.isEmpty() ? 0 : 1;
        }
    }

    private synchronized boolean isDraining() { return draining; }

    /** Waits for a condition under the lock, at most so many seconds. */
    private synchronized void until(BooleanSupplier condition, double most) {
        for (double end = clock() + most; !condition.getAsBoolean() && clock() < end; ) pauseOn(Math.min(end - clock(), 0.25));
    }

    /** Waits on the lock, which the caller holds. An interrupt is for handlers, and here means nothing. */
    private void pauseOn(double seconds) {
        try {
            if (seconds > 0) wait(Math.max(1, (long) (seconds * 1000)));
        } catch (InterruptedException e) {
            Thread.interrupted();
        }
    }

    /** Seconds that nobody sets, and that go on while the machine sleeps, as far as the system tells: a lease does not wait. */
    static double clock() {
        try (var uptime = new FileInputStream("/proc/uptime")) {
            return Double.parseDouble(new String(uptime.readAllBytes(), StandardCharsets.US_ASCII).split(" ")[0]);
        } catch (IOException e) {
            return System.nanoTime() / 1e9; // no Linux: it stands still while the machine sleeps
        }
    }

    static double seconds(Duration d) { return d.getSeconds() + d.getNanos() / 1e9; }

    static Duration duration(double seconds) {
        if (!(seconds >= 0)) throw new IllegalArgumentException(seconds + " seconds");
        return Duration.newBuilder().setSeconds((long) seconds).setNanos((int) (seconds % 1 * 1e9)).build();
    }

    /** Doubles, and half of it is random: clients that failed together do not come back together. */
    static double backoff(int failures, double first, double most) {
        return Math.min(first * Math.pow(2, Math.min(failures, 30)), most) * (0.5 + ThreadLocalRandom.current().nextDouble() / 2);
    }

    /** A Fail that says what an exception says. */
    static FailRequest failure(String token, Throwable e) {
        var trace = new StringWriter();
        e.printStackTrace(new PrintWriter(trace));
        var known = e instanceof Failure f ? f : null;
        var fail = FailRequest.newBuilder().setLeaseToken(token).setPermanent(known != null && known.permanent).setError(JobError.newBuilder()
            .setCode(clean(known != null ? known.code : e.getClass().getSimpleName(), 128))
            .setMessage(clean(String.valueOf(e.getMessage()), TEXT_MOST)).setDetails(clean(trace.toString(), TEXT_MOST)));
        if (known != null && known.retryAfter != null) fail.setRetryAfter(duration(known.retryAfter));
        return fail.build();
    }

    /** Text that is not too long, cut between characters. */
    static String clean(String text, int most) {
        var bytes = text.getBytes(StandardCharsets.UTF_8);
        return bytes.length <= most ? text : new String(bytes, 0, most, StandardCharsets.UTF_8).replaceAll("\uFFFD+$", "");
    }

    static ThreadFactory daemons(String name) {
        return work -> {
            var thread = new Thread(work, name);
            thread.setDaemon(true);
            return thread;
        };
    }

    static String hostname() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (IOException e) {
            return "localhost";
        }
    }

    static void log(String text) { System.err.println(java.time.Instant.now() + " " + text); }
}
