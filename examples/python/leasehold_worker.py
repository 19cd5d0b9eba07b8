"""A worker runtime for Leasehold in one file: copy it next to your program.

    def handle(job):
        job.stage("psp_call")                # recorded; raises where the lease is not ours any more
        settle(job.payload, fence=job.lease_no)
        return {"settled": True}             # kept as the job's result

    sys.exit(Worker("127.0.0.1:7070", ["payments"], handle, slots=10).run())

A handler returns: the job is completed. It raises: the job has failed and runs again after its
backoff; Failure says more about that, and Release gives the job back without using an attempt.
Python cannot stop a thread, so that a handler must ask: job.sleep, job.stage and job.check raise
Cancelled once the lease is lost, in doubt, or to be given back, and job.cause says which.

Threads: one leases, one sends the heartbeats of all leases, one for each job. They share one lock.
Heartbeats have connections of their own and are not waited for: one that hangs holds up no other.
A handler that holds Python's global lock in C code for longer than its lease starves them.
"""

import itertools
import json
import logging
import math
import os
import random
import signal
import socket
import threading
import time
import traceback
import uuid

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from leasehold.v1 import errors_pb2, job_pb2, lease_service_pb2 as pb
from leasehold.v1.lease_service_pb2_grpc import LeaseServiceStub

log = logging.getLogger("leasehold")

POLL_SLACK = 5  # seconds that the deadline of a poll leaves for the way
END_TIMEOUT = 10  # seconds for one Complete, Fail or Release
LATE_COMPLETE = 60  # seconds after its lease for which a Complete is tried: nobody else may have begun
BATCH_ITEMS, BATCH_BYTES = 1000, 3 << 20  # of one call; the contract's bounds are 1,000 and 4 MiB
TEXT_MOST = 16 << 10  # bytes that the service keeps of an error's message and details
STAGE_MOST, CHECKPOINT_MOST = 128, 64 << 10  # bytes


def clock():
    """Seconds that nobody sets, and that go on while the machine sleeps: a lease does not wait."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Cancelled(BaseException):
    """The handler must stop. No Exception, so that "except Exception" does not go on regardless."""


class LeaseLost(Cancelled):
    """The service said that the lease is over: LEASE_SUPERSEDED, LEASE_EXPIRED, LEASE_ENDED, …"""


class LeaseExpired(Cancelled):
    """The lease could not be renewed in time: as far as this process knows it may be another's."""


class CancelRequested(Cancelled):
    """Somebody cancelled the job. The lease is still ours: tidy up, then let this pass."""


class ShuttingDown(Cancelled):
    """The worker ends and its grace is over. The job is given back."""


class Release(Exception):
    """Gives the job back without using an attempt, to run again after delay seconds."""

    def __init__(self, delay=0):
        super().__init__(f"released, to run again after {delay} s")
        self.delay = seconds(delay)


class Failure(Exception):
    """Fails the job with more than a message. permanent: never try again."""

    def __init__(self, message, code="failed", permanent=False, retry_after=None):
        super().__init__(message)
        self.code, self.permanent = code, permanent
        self.retry_after = None if retry_after is None else seconds(retry_after)


class CallError(Exception):
    """What a call, or one item of a batch, was answered instead of OK."""

    OVER = {"LEASE_SUPERSEDED", "LEASE_EXPIRED", "LEASE_ENDED", "JOB_NOT_FOUND", "INVALID_TOKEN"}
    ELSEWHERE = {"DATABASE_UNAVAILABLE", "DRAINING", "OVERLOADED"}
    # The codes as numbers, which is how an item of a batch has them.
    INVALID, NOT_FOUND, PRECONDITION, TOO_MUCH = 3, 5, 9, 8
    FINAL = {INVALID, NOT_FOUND, 6, PRECONDITION, 11, 12}  # ALREADY_EXISTS, OUT_OF_RANGE, UNIMPLEMENTED
    NO_ANSWER = {2, 4, 13, 14}  # UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE

    def __init__(self, code, reason, message, retry_after=0.0):
        super().__init__(f"{reason or code}: {message}")
        self.code, self.reason, self.retry_after = code, reason, retry_after
        # Trying again, unchanged, cannot help. gRPC itself gives no reason for a message that is too big.
        self.final = code in self.FINAL or code == self.TOO_MUCH and not reason
        # The lease is not ours any more.
        self.over = reason in self.OVER or not reason and code in (self.NOT_FOUND, self.PRECONDITION)
        # Another replica may do better.
        self.elsewhere = reason in self.ELSEWHERE or not reason and code in self.NO_ANSWER

    @classmethod
    def of_call(cls, call):
        if isinstance(call, grpc.FutureCancelledError):
            return cls(1, "", "cancelled")
        reason = dict(call.trailing_metadata() or ()).get("leasehold-reason", "")
        retry = error_details_pb2.RetryInfo()
        try:
            status = rpc_status.from_call(call)
        except ValueError:  # a proxy has changed the one and not the other
            status = None
        for detail in status.details if status else ():
            detail.Unpack(retry)
        return cls(call.code().value[0], reason, call.details(), retry.retry_delay.ToTimedelta().total_seconds())

    @classmethod
    def of_item(cls, item):
        reason = ""  # of a service that is newer than this: the code decides
        if item.reason in errors_pb2.ErrorReason.values():
            reason = errors_pb2.ErrorReason.Name(item.reason).removeprefix("ERROR_REASON_")
        return cls(item.code, reason, item.message, item.retry_after.ToTimedelta().total_seconds())


class Lane:
    """Connections that lead to the same service, for one kind of calls. After a failure the next
    one is used; each is made when it is needed."""

    OPTIONS = (
        ("grpc.use_local_subchannel_pool", 1),  # else equal channels share one connection
        ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000),  # finds a dead peer
        ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 3_000),
        ("grpc.min_reconnect_backoff_ms", 5_000),  # which is the time for one try to connect
        ("grpc.service_config", '{"loadBalancingConfig":[{"round_robin":{}}]}'),
    )

    def __init__(self, addresses, credentials):
        # One address twice: behind a balancer the second leads elsewhere.
        addresses = addresses * 2 if len(addresses) == 1 else addresses
        open_channel = grpc.insecure_channel if credentials is None else (
            lambda address, options: grpc.secure_channel(address, credentials, options))
        self.channels = [open_channel(address, options=self.OPTIONS) for address in addresses]
        self._stubs = [LeaseServiceStub(channel) for channel in self.channels]
        self._at = random.randrange(len(self._stubs))  # so that each replica has its share

    def pick(self):
        return self._stubs[self._at]

    def failed(self, stub, error=None):
        if stub is self._stubs[self._at] and (error is None or error.elsewhere):
            self._at = (self._at + 1) % len(self._stubs)


class Lease:
    """One lease, from its grant until its end is answered. All of it is under the worker's lock."""

    def __init__(self, granted, since):
        self.granted, self.token = granted, granted.lease_token
        self.asked = since  # when the newest heartbeat that was answered had been sent
        self.beats = True  # no longer once it is lost, or its Fail or Release is on its way
        self.under = 0  # heartbeats under way
        self.tries = 0  # heartbeats since the last answer
        self.way, self.sent = None, 0.0  # of the last heartbeat
        self.cause = None  # why the handler must stop
        self.lost = None  # the reason, where the service said so
        self.cancelled = threading.Event()
        self.note, self.version, self.recorded, self.owed, self.refused = {}, 0, 0, 0, None
        self.renew(since, granted)

    def renew(self, since, answer):
        """Notes how much remained of the lease at a time when it was not yet asked for."""
        remaining = answer.remaining.ToTimedelta().total_seconds()
        interval = answer.next_heartbeat_in.ToTimedelta().total_seconds()
        self.interval = max(0.1, interval if 0 < interval <= remaining / 2 else remaining / 3)
        self.end_at = since + remaining
        # The handler needs time to notice, and what it sent last needs time to arrive.
        self.stop_at = self.end_at - min(remaining / 10, 3)
        self.beat_at = since + self.interval
        self.tries = 0

    def gap(self, now):
        """How long to wait for an answer before the next heartbeat is sent beside it."""
        gap = min(max(self.interval / 3, 0.1), 2)
        if self.stop_at > now:
            gap = min(gap, (self.stop_at - now) / 3)
        return max(gap, 0.1) * random.uniform(0.8, 1)

    def cancel(self, cause):
        if self.cause is None:  # the first one counts
            self.cause = cause
            self.cancelled.set()


class Job:
    """One job, as its handler sees it. id, queue, lease_no, attempt, payload and the rest are facts;
    lease_no is the fencing number: give it to every system that the work changes."""

    def __init__(self, worker, lease):
        granted = lease.granted
        self._worker, self._lease = worker, lease
        self.id, self.queue, self.headers = granted.job.job_id, granted.job.queue, dict(granted.job.headers)
        self.lease_no, self.attempt = granted.lease_no, granted.attempt
        self.last_stage, self.last_checkpoint = granted.last_stage, granted.last_checkpoint
        self.details = granted.job  # all that the service says of the job
        self.then = []  # EnqueueRequests that are enqueued in the transaction that completes the job

    @property
    def payload(self):
        """The payload: the value where it is JSON, else bytes."""
        payload = self.details.payload
        return json.loads(payload.json) if payload.WhichOneof("content") == "json" else payload.data

    @property
    def cause(self):
        """Why the handler must stop; None while it may go on. It looks at the clock itself: a
        process that was stopped may come here before the thread that watches the leases."""
        with self._worker.changed:
            if clock() >= self._lease.stop_at:
                self._lease.cancel(LeaseExpired(f"lease {self.lease_no} of job {self.id} was not renewed in time"))
            return self._lease.cause

    def check(self):
        """Raises Cancelled where the handler must stop."""
        if (cause := self.cause) is not None:
            raise cause

    def sleep(self, seconds):
        """Sleeps; raises Cancelled at once when the handler must stop."""
        self._lease.cancelled.wait(seconds)
        self.check()

    def progress(self, done):
        """Says how far the work is, 0..1, by the next heartbeat. It does not wait."""
        self._worker.report(self._lease, progress=min(max(float(done), 0), 1))

    def stage(self, stage):
        """Says where the work is, at most 128 bytes, and returns when that is recorded: the step
        behind it begins while the lease is surely held."""
        if len(stage.encode()) > STAGE_MOST:
            raise ValueError(f"a stage has at most {STAGE_MOST} bytes")
        self._await(self._worker.report(self._lease, now=True, stage=stage))

    def checkpoint(self, state):
        """Leaves bytes, at most 64 KiB, to the next lease; returns when they are stored."""
        if len(state) > CHECKPOINT_MOST:
            raise ValueError(f"a checkpoint has at most {CHECKPOINT_MOST} bytes")
        self._await(self._worker.report(self._lease, now=True, checkpoint=state))

    def _await(self, version):
        lease = self._lease
        with self._worker.changed:
            while lease.cause is None and lease.recorded < version:
                if lease.refused is not None:
                    raise ValueError(str(lease.refused))
                self._worker.changed.wait(1)
        self.check()


class Worker:
    """Leases jobs of queues and runs handle(job) for each in a thread, at most slots at once.

    addresses: one or a list; give all replicas, or a name that resolves to all. lease: seconds that
    a dead worker's jobs stay where they are, default the queue's. grace: seconds for which handlers
    may go on after SIGTERM; the worker then ends within 8 s more."""

    def __init__(self, addresses, queues, handle, slots=10, owner=None, lease=None, wait=20, grace=20,
                 credentials=None):
        addresses = [addresses] if isinstance(addresses, str) else list(addresses)
        self._polls, self._beats, self._calls = self._lanes = [Lane(addresses, credentials) for _ in range(3)]
        self._queues, self._handle, self._slots = list(queues), handle, slots
        self._owner = owner or f"{socket.gethostname()}/{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._lease, self._wait, self._grace, self._failures = lease, wait, grace, 0
        self.changed = threading.Condition()  # the lock of all that follows
        self._leases, self._running, self._draining, self._poll = {}, set(), False, None

    # Leasing

    def _lease_loop(self):
        while (free := self._await_slots()) > 0:
            try:
                self._acquire(free)
            except Exception:  # as where no thread can be started: the worker must come back
                log.exception("leasing failed")
                time.sleep(1)

    def _await_slots(self):
        with self.changed:
            self.changed.wait_for(lambda: self._draining or len(self._leases) < self._slots)
            return 0 if self._draining else min(self._slots - len(self._leases), BATCH_ITEMS)

    def _acquire(self, free):
        """Makes one poll, and repeats it in the same words until it is answered: leases of an answer
        that was lost come again, by the request id, and no others."""
        request = pb.AcquireLeaseRequest(
            queues=self._queues, lease_owner=self._owner, max_jobs=free, wait=seconds(self._wait),
            lease_duration=None if self._lease is None else seconds(self._lease), request_id=uuid.uuid4().hex)
        while True:
            last = self._draining  # leases that are on their way are found, and given back
            if last:
                request.ClearField("wait")
            began, got, error, pause = clock(), 0, None, 0
            try:
                got = self._ask(request, 3 if last else self._wait + POLL_SLACK)
                self._failures = 0
            except CallError as e:
                error, pause = e, max(backoff(self._failures, 0.2, 10), e.retry_after)
                self._failures += 1
                log.log(logging.DEBUG if self._draining else logging.WARNING, "no leases: %s", e)
            if got == 0 and error is None and clock() - began < 1:
                pause = 1  # it should have waited
            with self.changed:
                self.changed.wait_for(lambda: self._draining, pause)
            if last or error is None or error.final:
                return

    def _ask(self, request, timeout):
        """Makes one call, begins the leases that it brings, and returns how many they are."""
        stub, sent = self._polls.pick(), clock()
        with self.changed:
            self._poll = stub.AcquireLease.future(request, timeout=timeout)
            if self._draining and request.HasField("wait"):
                self._poll.cancel()
        try:
            answer = self._poll.result()
        except (grpc.RpcError, grpc.FutureCancelledError) as e:
            error = CallError.of_call(e)
            self._polls.failed(stub, error)
            raise error from None
        self._begin(answer.leases, sent + answer.waited.ToTimedelta().total_seconds())
        return len(answer.leases)

    def _begin(self, granted, since):
        """Starts the handlers of leases that had not begun yet at since."""
        for one in granted:
            lease = Lease(one, since)
            with self.changed:
                threading.Thread(target=self._work, args=(lease,), daemon=True, name=f"job-{one.job.job_id}").start()
                self._leases[lease.token] = lease
                self._running.add(lease)
                self.changed.notify_all()

    # Heartbeats

    def _beat_loop(self):
        while True:
            with self.changed:
                try:
                    wait = self._beat()
                except Exception:  # all leases depend on this thread
                    log.exception("heartbeats failed")
                    wait = 0.5
                self.changed.wait(wait)

    def _beat(self):
        """Does what is due, and returns after how many seconds to look again."""
        now = clock()
        for lease in self._running:
            if now >= lease.stop_at:
                lease.cancel(LeaseExpired(f"the lease of job {lease.granted.job.job_id} was not renewed in time"))
        beating = [lease for lease in self._leases.values() if lease.beats]
        if any(lease.beat_at <= now for lease in beating):
            # Those that are due soon go along, so that all leases beat in one call.
            early = [0 if lease.tries else lease.interval / 2 for lease in beating]
            self._send([lease for lease, by in zip(beating, early) if lease.beat_at <= now + by], now)
        # At least each second: timers stand still while the machine sleeps, clock() does not.
        stops = [lease.stop_at for lease in self._running if lease.cause is None]
        return max(min([now + 1, *stops, *(lease.beat_at for lease in beating)]) - clock(), 0)

    def _send(self, due, now):
        """Starts one call for as many leases as it holds, and does not wait for it."""
        for lease in due:
            if lease.under > 0 and now - lease.sent > 0.1:
                self._beats.failed(lease.way)  # it has not answered for so long: the next goes by another
        stub, request, batch = self._beats.pick(), pb.BatchHeartbeatRequest(), []
        for lease in due[:BATCH_ITEMS]:
            item = pb.HeartbeatRequest(lease_token=lease.token, **(lease.note if lease.owed else {}))
            if batch and request.ByteSize() + item.ByteSize() > BATCH_BYTES:
                break
            request.items.append(item)
            batch.append((lease, lease.version))
            if lease.owed and lease.tries:
                lease.owed = 3  # an older sending may still arrive, behind newer ones, and undo them
            lease.under, lease.tries, lease.way, lease.sent = lease.under + 1, lease.tries + 1, stub, now
            lease.beat_at = now + lease.gap(now)
        timeout = min(max(min(lease.interval for lease, _ in batch), 0.5), 10)
        call = stub.BatchHeartbeat.future(request, timeout=timeout)
        call.add_done_callback(lambda done: self._beaten(done, stub, batch, now))

    def _beaten(self, call, stub, batch, sent):
        error, results = None, []
        try:
            results = call.result().results
            if len(results) != len(batch):
                error = CallError(13, "", "a batch with too few results")
        except (grpc.RpcError, grpc.FutureCancelledError) as e:
            error = CallError.of_call(e)
        if error:
            log.warning("heartbeat of %d leases failed: %s", len(batch), error)
        with self.changed:
            if error:
                self._beats.failed(stub, error)
            for i, (lease, version) in enumerate(batch):
                lease.under -= 1
                if error:
                    self._again(lease, error)
                elif results[i].HasField("ok"):
                    self._renewed(lease, version, results[i].ok, sent)
                    if results[i].ok.server_draining:
                        self._beats.failed(stub)
                else:
                    self._refused(lease, version, CallError.of_item(results[i].error))
            self.changed.notify_all()

    def _renewed(self, lease, version, answer, sent):
        if sent >= lease.asked:
            lease.asked = sent
            lease.renew(sent, answer)
        lease.recorded = max(lease.recorded, version)
        if version == lease.version and lease.owed:
            lease.owed -= 1
            if lease.owed == 0:
                lease.note = {}
        if answer.cancel_requested:
            lease.cancel(CancelRequested(f"somebody asked to cancel job {lease.granted.job.job_id}"))

    def _refused(self, lease, version, error):
        if error.over:
            lease.beats, lease.lost = False, error.reason
            lease.cancel(LeaseLost(str(error)))
            return
        if error.code == CallError.INVALID and version == lease.version:
            lease.note, lease.owed, lease.refused = {}, 0, error  # what is out of bounds must not cost the lease
        self._again(lease, error)

    def _again(self, lease, error):
        now = clock()
        lease.beat_at = min(lease.beat_at, now + max(lease.gap(now) / 2, min(error.retry_after, lease.interval)))

    def report(self, lease, now=False, **what):
        """Adds to what the next heartbeat carries, which is sent now where somebody waits for it."""
        pb.HeartbeatRequest(**what)  # raises here, in the handler, where it cannot be sent
        with self.changed:
            lease.note = {**lease.note, **what}
            lease.version, lease.owed, lease.refused = lease.version + 1, 1, None
            if now:
                lease.beat_at = clock()
                self.changed.notify_all()
            return lease.version

    # Work and its end

    def _work(self, lease):
        try:
            end = self._run(Job(self, lease), lease)
            with self.changed:
                self._running.discard(lease)
                self.changed.notify_all()
            if end:
                self._end(lease, *end)
        finally:
            with self.changed:
                self._running.discard(lease)
                self._leases.pop(lease.token, None)
                self.changed.notify_all()

    def _run(self, job, lease):
        """Runs the handler, and says what to tell the service: a method and its request, or None."""
        release = pb.ReleaseRequest(lease_token=lease.token)
        try:
            if self._draining:
                raise ShuttingDown("the worker shuts down")
            job.check()  # it may have run out on its way
            result = self._handle(job)
            if result is not None:
                result = job_pb2.Payload(json=json.dumps(result), content_type="application/json")
            end = "Complete", pb.CompleteRequest(lease_token=lease.token, result=result, then_enqueue=job.then)
        except Cancelled as cause:
            log.info("job %s: cancelled: %s", job.id, cause)
            end = "Release", release
        except Release as asked:
            release.delay.CopyFrom(asked.delay)
            end = "Release", release
        except BaseException as e:  # SystemExit too: only the job has failed
            if isinstance(lease.cause, ShuttingDown) and not isinstance(e, Failure):
                end = "Release", release  # a connection that was closed, say, has its own words for it
            else:
                log.warning("job %s failed: %r", job.id, e)
                end = "Fail", failure(lease.token, e)
        with self.changed:
            if lease.lost and not (lease.lost == "LEASE_EXPIRED" and end[0] == "Complete"):
                return None  # whatever is said would be refused, and counted as a second run
        return end

    def _end(self, lease, name, request):
        """Tells the service how a lease ended, in the same words until it is answered."""
        if name != "Complete":
            # Behind the call that hands the job to somebody else a heartbeat would look as if the
            # work ran twice. While a Complete is not answered the lease beats on.
            with self.changed:
                lease.beats = False
                self.changed.wait_for(lambda: lease.under == 0, 2)
        for failures in itertools.count():
            stub = self._calls.pick()
            try:
                getattr(stub, name)(request, timeout=END_TIMEOUT)
                return
            except grpc.RpcError as e:
                error = CallError.of_call(e)
            log.warning("%s of job %s: %s", name, lease.granted.job.job_id, error)
            if error.over or error.reason == "RESULT_CONFLICT":
                return
            if error.final:
                if name == "Complete":  # without another word the lease would only run out
                    self._end(lease, "Fail", failure(lease.token, Failure(str(error), "result_refused")))
                return
            if clock() >= lease.end_at + (LATE_COMPLETE if name == "Complete" else 0):
                return
            self._calls.failed(stub, error)
            time.sleep(max(backoff(failures, 0.1, 5), error.retry_after))

    # Shutdown

    def run(self):
        """Works until SIGTERM or SIGINT. Then no more jobs are leased; handlers may go on for the
        grace, and what they did not finish is given back. A second signal cuts the grace short, a
        third ends the process. Returns 0, or 1 where a handler did not return: its lease runs out."""
        signals = []  # a signal handler may take no lock, and what blocks may sleep through two at once
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: signals.append(None))
        threading.Thread(target=self._beat_loop, daemon=True, name="heartbeats").start()
        leasing = threading.Thread(target=self._lease_loop, daemon=True, name="leasing")
        leasing.start()
        log.info("%s leases from %s", self._owner, ", ".join(self._queues))
        await_until(lambda: signals, math.inf)
        with self.changed:
            self._draining = True
            if self._poll is not None:
                self._poll.cancel()
            self.changed.notify_all()
        await_until(lambda: not self._running or len(signals) > 1, self._grace)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        with self.changed:
            for lease in self._running:
                lease.cancel(ShuttingDown("the worker shuts down"))
        leasing.join(5)
        await_until(lambda: not self._running, 3)
        await_until(lambda: len(self._leases) == len(self._running), 5)
        with self.changed:
            left = [lease.granted.job.job_id for lease in self._leases.values()]
            for lease in self._leases.values():
                lease.beats = False  # a job whose work goes on is not given away: its lease runs out
        for lane in self._lanes:
            for channel in lane.channels:
                channel.close()
        log.log(logging.ERROR if left else logging.INFO, "the worker ends; left behind: %s", left or "nothing")
        return 1 if left else 0


def await_until(condition, most):
    """Waits for a condition, at most so many seconds."""
    until = clock() + most
    while not condition() and clock() < until:
        time.sleep(0.05)


def seconds(value):
    if value < 0:
        raise ValueError(f"{value} seconds")
    return Duration(seconds=int(value), nanos=int(value % 1 * 1e9))


def backoff(failures, first, most):
    """Doubles, and half of it is random: clients that failed together do not come back together."""
    return min(first * 2 ** min(failures, 30), most) * random.uniform(0.5, 1)


def failure(token, error):
    """A Fail that says what an exception says."""
    known = isinstance(error, Failure)
    code = error.code if known else type(error).__name__
    details = "".join(traceback.format_exception(error)) if error.__traceback__ else ""
    return pb.FailRequest(
        lease_token=token, permanent=known and error.permanent, retry_after=error.retry_after if known else None,
        error=job_pb2.JobError(code=clean(code, 128), message=clean(error), details=clean(details)))


def clean(text, most=TEXT_MOST):
    """Text as gRPC can carry it: of a long one the end, where a traceback has what matters."""
    return str(text).encode("utf-8", "replace")[-most:].decode("utf-8", "ignore")
