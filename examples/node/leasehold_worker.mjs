// A worker runtime for Leasehold in one file: copy it next to your program.
//
//     const worker = new Worker("127.0.0.1:7070", ["payments"], async (job) => {
//       await job.stage("psp_call");            // recorded; throws where the lease is not ours any more
//       await settle(job.payload, { fence: job.leaseNo, signal: job.signal });
//       return { settled: true };               // kept as the job's result
//     }, { slots: 10 });
//     process.exitCode = await worker.run();
//
// A handler returns: the job is completed. It throws: the job has failed and runs again after its
// backoff; Failure says more about that, and Release gives the job back without using an attempt.
// job.signal is an AbortSignal: give it to fetch, timers and drivers. It aborts once the lease is
// lost, in doubt, or to be given back, and signal.reason says which.
//
// Heartbeats share the event loop with the handlers: work that computes for seconds belongs into a
// worker_thread, or it starves them. They have connections of their own and are not waited for: one
// that hangs holds up no other.

import { randomBytes, randomUUID } from "node:crypto";
import { hostname, uptime } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const here = dirname(fileURLToPath(import.meta.url));
const protos = process.env.LEASEHOLD_PROTO ?? join(here, "..", "..", "proto");
const api = grpc.loadPackageDefinition(loader.loadSync("leasehold/v1/lease_service.proto", {
  includeDirs: [protos], longs: String, enums: String, oneofs: true, json: true,
})).leasehold.v1;
// What gRPC says of an error beside its code: only the time to wait is read.
const rich = loader.loadSync("status.proto", { includeDirs: [here], longs: String });

const pollSlack = 5; // seconds that the deadline of a poll leaves for the way
const endTimeout = 10; // seconds for one Complete, Fail or Release
const lateComplete = 60; // seconds after its lease for which a Complete is tried: nobody else may have begun
const batchItems = 1000, batchBytes = 3 << 20; // of one call; the contract's bounds are 1,000 and 4 MiB
const textMost = 16 << 10; // bytes that the service keeps of an error's message and details
const stageMost = 128, checkpointMost = 64 << 10; // bytes

// Seconds that nobody sets, and that go on while the machine sleeps: a lease does not wait.
const clock = () => uptime();

const seconds = (d) => (d ? Number(d.seconds ?? 0) + (d.nanos ?? 0) / 1e9 : 0);
const duration = (s) => {
  if (!(s >= 0)) throw new RangeError(`${s} seconds`);
  return { seconds: Math.floor(s), nanos: Math.floor((s % 1) * 1e9) };
};
// Doubles, and half of it is random: clients that failed together do not come back together.
const backoff = (failures, first, most) => Math.min(first * 2 ** Math.min(failures, 30), most) * (0.5 + Math.random() / 2);
const log = (level, text) => console.error(`${new Date().toISOString()} ${level} ${text}`);

/** The handler must stop; it is the reason of job.signal. */
export class Cancelled extends Error { get name() { return this.constructor.name; } }
/** The service said that the lease is over: LEASE_SUPERSEDED, LEASE_EXPIRED, LEASE_ENDED, … */
export class LeaseLost extends Cancelled {}
/** The lease could not be renewed in time: as far as this process knows it may be another's. */
export class LeaseExpired extends Cancelled {}
/** Somebody cancelled the job. The lease is still ours: tidy up, then let this pass. */
export class CancelRequested extends Cancelled {}
/** The worker ends and its grace is over. The job is given back. */
export class ShuttingDown extends Cancelled {}

/** Gives the job back without using an attempt, to run again after delay seconds. */
export class Release extends Error {
  constructor(delay = 0) { super(`released, to run again after ${delay} s`); this.delay = duration(delay); }
}

/** Fails the job with more than a message. permanent: never try again; retryAfter: seconds. */
export class Failure extends Error {
  constructor(message, { code = "failed", permanent = false, retryAfter } = {}) {
    super(message);
    Object.assign(this, { code, permanent, retryAfter: retryAfter === undefined ? undefined : duration(retryAfter) });
  }
}

const over = new Set(["LEASE_SUPERSEDED", "LEASE_EXPIRED", "LEASE_ENDED", "JOB_NOT_FOUND", "INVALID_TOKEN"]);
const elsewhere = new Set(["DATABASE_UNAVAILABLE", "DRAINING", "OVERLOADED"]);
const { INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED } = grpc.status;
const { UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, RESOURCE_EXHAUSTED } = grpc.status;
const finalCodes = new Set([INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED]);
const noAnswer = new Set([UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE]);

/** What a call, or one item of a batch, was answered instead of OK. */
class CallError extends Error {
  constructor(code, reason, message, retryAfter = 0) {
    super(`${reason || grpc.status[code] || code}: ${message}`);
    Object.assign(this, { code, reason, retryAfter });
    // Trying again, unchanged, cannot help. gRPC itself gives no reason for a message that is too big.
    this.final = finalCodes.has(code) || (code === RESOURCE_EXHAUSTED && !reason);
    // The lease is not ours any more.
    this.over = over.has(reason) || (!reason && (code === NOT_FOUND || code === FAILED_PRECONDITION));
    // Another replica may do better.
    this.elsewhere = elsewhere.has(reason) || (!reason && noAnswer.has(code));
  }

  static ofCall(error) {
    const reason = String(error.metadata?.get("leasehold-reason")?.[0] ?? "");
    let retryAfter = 0;
    try {
      const status = rich["google.rpc.Status"].deserialize(error.metadata?.get("grpc-status-details-bin")?.[0] ?? Buffer.alloc(0));
      for (const any of status.details ?? []) {
        if (any.type_url?.endsWith("/google.rpc.RetryInfo")) retryAfter = seconds(rich["google.rpc.RetryInfo"].deserialize(any.value).retryDelay);
      }
    } catch { /* a proxy has changed it: the code and the reason decide */ }
    return new CallError(error.code ?? UNKNOWN, reason, error.details ?? error.message, retryAfter);
  }

  static ofItem(item) {
    const reason = String(item.reason ?? "").replace(/^ERROR_REASON_/, "").replace(/^\d+$/, ""); // newer than this: the code decides
    return new CallError(item.code, reason, item.message, seconds(item.retryAfter));
  }
}

/** Connections that lead to the same service, for one kind of calls. After a failure the next one
 * is used; each is made when it is needed. */
class Lane {
  static options = {
    "grpc.use_local_subchannel_pool": 1, // else equal channels share one connection
    "grpc.keepalive_time_ms": 10_000, "grpc.keepalive_timeout_ms": 5_000, // finds a dead peer
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.initial_reconnect_backoff_ms": 100, "grpc.max_reconnect_backoff_ms": 3_000,
    "grpc.service_config": '{"loadBalancingConfig":[{"round_robin":{}}]}',
  };

  constructor(addresses, credentials) {
    const all = addresses.length === 1 ? [...addresses, ...addresses] : addresses; // behind a balancer the second leads elsewhere
    this.clients = all.map((address) => new api.LeaseService(address, credentials, Lane.options));
    this.at = Math.floor(Math.random() * all.length); // so that each replica has its share
  }

  pick() { return this.clients[this.at]; }

  failed(client, error) {
    if (client === this.clients[this.at] && (!error || error.elsewhere)) this.at = (this.at + 1) % this.clients.length;
  }

  close() { for (const client of this.clients) client.close(); }
}

/** Makes one call; started gets what cancels it. */
function invoke(client, method, request, timeout, started = () => {}) {
  return new Promise((resolve, reject) => {
    const call = client[method](request, { deadline: Date.now() + timeout * 1000 },
      (error, answer) => (error ? reject(CallError.ofCall(error)) : resolve(answer)));
    started(call);
  });
}

/** One lease, from its grant until its end is answered. */
class Lease {
  constructor(granted, since) {
    Object.assign(this, {
      granted, token: granted.leaseToken, jobID: granted.job.jobId,
      asked: since, // when the newest heartbeat that was answered had been sent
      beats: true, // no longer once it is lost, or its Fail or Release is on its way
      under: 0, tries: 0, // heartbeats under way, and those since the last answer
      way: undefined, sent: 0, // of the last heartbeat
      lost: undefined, // the reason, where the service said so
      note: {}, version: 0, recorded: 0, owed: 0, refused: undefined,
      abort: new AbortController(), waiting: new Set(),
    });
    this.renew(since, granted);
  }

  get cause() { return this.abort.signal.reason; }

  /** Notes how much remained of the lease at a time when it was not yet asked for. */
  renew(since, answer) {
    const remaining = seconds(answer.remaining), advice = seconds(answer.nextHeartbeatIn);
    this.interval = Math.max(0.1, advice > 0 && advice <= remaining / 2 ? advice : remaining / 3);
    this.endAt = since + remaining;
    // The handler needs time to notice, and what it sent last needs time to arrive.
    this.stopAt = this.endAt - Math.min(remaining / 10, 3);
    this.beatAt = since + this.interval;
    this.tries = 0;
  }

  /** How long to wait for an answer before the next heartbeat is sent beside it. */
  gap(now) {
    let gap = Math.min(Math.max(this.interval / 3, 0.1), 2);
    if (this.stopAt > now) gap = Math.min(gap, (this.stopAt - now) / 3);
    return Math.max(gap, 0.1) * (0.8 + Math.random() / 5);
  }

  cancel(cause) {
    if (!this.abort.signal.aborted) { // the first cause counts
      this.abort.abort(cause);
      this.changed();
    }
  }

  changed() {
    for (const wake of this.waiting) wake();
    this.waiting.clear();
  }

  /** Looks at the clock itself: a process that was stopped may come here before the heartbeats do. */
  look() {
    if (clock() >= this.stopAt) this.cancel(new LeaseExpired(`the lease of job ${this.jobID} was not renewed in time`));
    return this.cause;
  }
}

/** One job, as its handler sees it. leaseNo is the fencing number: give it to every system that the
 * work changes. It is a string, because it may be larger than a JavaScript number holds exactly. */
class Job {
  #worker; #lease;

  constructor(worker, lease) {
    const { granted } = lease;
    this.#worker = worker;
    this.#lease = lease;
    Object.assign(this, {
      id: granted.job.jobId, queue: granted.job.queue, headers: granted.job.headers ?? {},
      leaseNo: granted.leaseNo, attempt: granted.attempt, lastStage: granted.lastStage, lastCheckpoint: granted.lastCheckpoint,
      details: granted.job, // all that the service says of the job
      signal: lease.abort.signal,
      thenEnqueue: [], // EnqueueRequests that are enqueued in the transaction that completes the job
    });
  }

  /** The payload: the value where it is JSON, else bytes. */
  get payload() {
    const { payload } = this.details;
    return payload?.content === "json" ? JSON.parse(payload.json) : payload?.data;
  }

  /** Throws where the handler must stop. */
  check() {
    const cause = this.#lease.look();
    if (cause) throw cause;
  }

  /** Sleeps; throws at once when the handler must stop. */
  async sleep(s) {
    await pause(s * 1000, undefined, { signal: this.signal }).catch(() => {});
    this.check();
  }

  /** Says how far the work is, 0..1, by the next heartbeat. It does not wait. */
  progress(done) { this.#worker.report(this.#lease, { progress: Math.min(Math.max(Number(done), 0), 1) }); }

  /** Says where the work is, at most 128 bytes, and resolves when that is recorded: the step behind it
   * begins while the lease is surely held. */
  async stage(stage) {
    if (Buffer.byteLength(stage) > stageMost) throw new RangeError(`a stage has at most ${stageMost} bytes`);
    await this.#recorded(this.#worker.report(this.#lease, { stage }, true));
  }

  /** Leaves bytes, at most 64 KiB, to the next lease; resolves when they are stored. */
  async checkpoint(state) {
    if (state.length > checkpointMost) throw new RangeError(`a checkpoint has at most ${checkpointMost} bytes`);
    await this.#recorded(this.#worker.report(this.#lease, { checkpoint: state }, true));
  }

  async #recorded(version) {
    const lease = this.#lease;
    while (!lease.look() && lease.recorded < version) {
      if (lease.refused) throw new RangeError(lease.refused.message);
      await new Promise((wake) => lease.waiting.add(wake));
    }
    this.check();
  }
}

/** Leases jobs of queues and runs handle(job) for each, at most slots at once.
 *
 * addresses: one or a list; give all replicas, or a name that resolves to all. lease: seconds that a
 * dead worker's jobs stay where they are, default the queue's. grace: seconds for which handlers may go
 * on after SIGTERM; the worker then ends within 8 s more. */
export class Worker {
  #polls; #beats; #calls; #handle; #options;
  #leases = new Map(); #running = new Set(); #draining = false; #poll; #failures = 0; #timer; #waiting = new Set();

  constructor(addresses, queues, handle, { slots = 10, owner, lease, wait = 20, grace = 20, credentials = grpc.credentials.createInsecure() } = {}) {
    const list = [addresses].flat();
    [this.#polls, this.#beats, this.#calls] = [1, 2, 3].map(() => new Lane(list, credentials));
    this.#handle = handle;
    this.#options = { queues, slots, lease, wait, grace, owner: owner ?? `${hostname()}/${process.pid}-${randomBytes(3).toString("hex")}` };
  }

  // Whoever waits for a change of what the worker holds looks again.
  #changed() {
    for (const wake of this.#waiting) wake();
    this.#waiting.clear();
  }

  /** Waits for a condition, at most so many seconds. */
  async #until(condition, most = Infinity) {
    const end = clock() + most;
    while (!condition() && clock() < end) {
      let timer;
      await new Promise((wake) => {
        this.#waiting.add(wake);
        timer = setTimeout(wake, Math.min(Math.max(end - clock(), 0.01), 1) * 1000);
      });
      clearTimeout(timer);
    }
  }

  // Leasing

  async #leaseLoop() {
    for (;;) {
      await this.#until(() => this.#draining || this.#leases.size < this.#options.slots);
      if (this.#draining) return;
      await this.#acquire(Math.min(this.#options.slots - this.#leases.size, batchItems));
    }
  }

  /** Makes one poll, and repeats it in the same words until it is answered: leases of an answer that was
   * lost come again, by the request id, and no others. */
  async #acquire(free) {
    const { queues, owner, wait, lease } = this.#options;
    const request = { queues, leaseOwner: owner, maxJobs: free, wait: duration(wait), requestId: randomUUID() };
    if (lease !== undefined) request.leaseDuration = duration(lease);
    for (;;) {
      const last = this.#draining; // leases that are on their way are found, and given back
      if (last) delete request.wait;
      const began = clock();
      let got = 0, failed, rest = 0;
      try {
        got = await this.#ask(request, last ? 3 : wait + pollSlack);
        this.#failures = 0;
      } catch (error) {
        failed = error;
        rest = Math.max(backoff(this.#failures++, 0.2, 10), error.retryAfter ?? 0);
        if (!this.#draining) log("WARN", `no leases: ${error.message}`);
      }
      if (got === 0 && !failed && clock() - began < 1) rest = 1; // it should have waited
      await this.#until(() => this.#draining, rest);
      if (last || !failed || failed.final) return;
    }
  }

  /** Makes one call, begins the leases that it brings, and returns how many they are. */
  async #ask(request, timeout) {
    const client = this.#polls.pick(), sent = clock();
    try {
      const answer = await invoke(client, "acquireLease", request, timeout, (call) => { this.#poll = request.wait ? call : undefined; });
      const since = sent + seconds(answer.waited);
      for (const granted of answer.leases ?? []) this.#work(new Lease(granted, since));
      return answer.leases?.length ?? 0;
    } catch (error) {
      this.#polls.failed(client, error);
      throw error;
    }
  }

  // Heartbeats

  /** Does what is due, and sets a timer for the rest. */
  #beat() {
    const now = clock();
    for (const lease of this.#running) lease.look();
    const beating = [...this.#leases.values()].filter((lease) => lease.beats);
    if (beating.some((lease) => lease.beatAt <= now)) {
      // Those that are due soon go along, so that all leases beat in one call.
      this.#send(beating.filter((lease) => lease.beatAt <= now + (lease.tries ? 0 : lease.interval / 2)), now);
    }
    // At least each second: timers stand still while the machine sleeps, clock() does not.
    const stops = [...this.#running].filter((lease) => !lease.cause).map((lease) => lease.stopAt);
    const next = Math.min(now + 1, ...stops, ...beating.map((lease) => lease.beatAt));
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#beat(), Math.max(next - clock(), 0.005) * 1000);
  }

  /** Starts one call for as many leases as it holds, and does not wait for it. */
  #send(due, now) {
    for (const lease of due) {
      if (lease.under > 0 && now - lease.sent > 0.1) this.#beats.failed(lease.way); // no answer for so long: the next goes by another
    }
    const client = this.#beats.pick(), batch = [];
    let bytes = 0;
    for (const lease of due.slice(0, batchItems)) {
      const item = { leaseToken: lease.token, ...(lease.owed ? lease.note : {}) };
      bytes += lease.token.length + (item.checkpoint?.length ?? 0) + 300;
      if (batch.length && bytes > batchBytes) break;
      batch.push({ lease, version: lease.version, item });
      if (lease.owed && lease.tries) lease.owed = 3; // an older sending may still arrive, behind newer ones, and undo them
      lease.under++;
      lease.tries++;
      lease.way = client;
      lease.sent = now;
      lease.beatAt = now + lease.gap(now);
    }
    const timeout = Math.min(Math.max(Math.min(...batch.map(({ lease }) => lease.interval)), 0.5), 10);
    invoke(client, "batchHeartbeat", { items: batch.map(({ item }) => item) }, timeout)
      .then((answer) => this.#beaten(answer.results ?? [], client, batch, now))
      .catch((error) => this.#beaten([], client, batch, now, error));
  }

  #beaten(results, client, batch, sent, error) {
    if (!error && results.length !== batch.length) error = new CallError(INTERNAL, "", "a batch with too few results");
    if (error) {
      log("WARN", `heartbeat of ${batch.length} leases failed: ${error.message}`);
      this.#beats.failed(client, error);
    }
    batch.forEach(({ lease, version }, i) => {
      lease.under--;
      if (error) this.#again(lease, error);
      else if (results[i].ok) {
        this.#renewed(lease, version, results[i].ok, sent);
        if (results[i].ok.serverDraining) this.#beats.failed(client);
      } else this.#refused(lease, version, CallError.ofItem(results[i].error));
      lease.changed();
    });
    this.#changed();
    this.#beat();
  }

  #renewed(lease, version, answer, sent) {
    if (sent >= lease.asked) {
      lease.asked = sent;
      lease.renew(sent, answer);
    }
    lease.recorded = Math.max(lease.recorded, version);
    if (version === lease.version && lease.owed && --lease.owed === 0) lease.note = {};
    if (answer.cancelRequested) lease.cancel(new CancelRequested(`somebody asked to cancel job ${lease.jobID}`));
  }

  #refused(lease, version, error) {
    if (error.over) {
      lease.beats = false;
      lease.lost = error.reason || "LEASE_ENDED";
      lease.cancel(new LeaseLost(error.message));
      return;
    }
    // What is out of bounds must not cost the lease.
    if (error.code === INVALID_ARGUMENT && version === lease.version) Object.assign(lease, { note: {}, owed: 0, refused: error });
    this.#again(lease, error);
  }

  #again(lease, error) {
    const now = clock();
    lease.beatAt = Math.min(lease.beatAt, now + Math.max(lease.gap(now) / 2, Math.min(error.retryAfter ?? 0, lease.interval)));
  }

  /** Adds to what the next heartbeat carries, which is sent now where somebody waits for it. */
  report(lease, what, now = false) {
    Object.assign(lease, { note: { ...lease.note, ...what }, version: lease.version + 1, owed: 1, refused: undefined });
    if (now) {
      lease.beatAt = clock();
      this.#beat();
    }
    return lease.version;
  }

  // Work and its end

  async #work(lease) {
    this.#leases.set(lease.token, lease);
    this.#running.add(lease);
    this.#beat();
    let end;
    try {
      end = await this.#run(new Job(this, lease), lease);
    } finally {
      this.#running.delete(lease);
      this.#changed();
    }
    if (end) await this.#end(lease, ...end);
    this.#leases.delete(lease.token);
    this.#changed();
  }

  /** Runs the handler, and says what to tell the service: a method and its request, or nothing. */
  async #run(job, lease) {
    const leaseToken = lease.token;
    let end;
    try {
      if (this.#draining) throw new ShuttingDown("the worker shuts down");
      job.check(); // it may have run out on its way
      const result = await this.#handle(job);
      end = ["complete", { leaseToken, thenEnqueue: job.thenEnqueue }];
      if (result !== undefined) end[1].result = { json: JSON.stringify(result), contentType: "application/json" };
    } catch (error) {
      // Behind an abort what was aborted has its own words for it, as an AbortError of fetch.
      if (error instanceof Cancelled || (lease.cause && !(error instanceof Failure) && !(lease.cause instanceof CancelRequested))) {
        log("INFO", `job ${job.id}: cancelled: ${lease.cause?.message ?? error.message}`);
        end = ["release", { leaseToken }];
      } else if (error instanceof Release) {
        end = ["release", { leaseToken, delay: error.delay }];
      } else {
        log("WARN", `job ${job.id} failed: ${error?.message ?? error}`);
        end = ["fail", failure(leaseToken, error)];
      }
    }
    // Whatever is said would be refused, and counted as a second run.
    if (lease.lost && !(lease.lost === "LEASE_EXPIRED" && end[0] === "complete")) return undefined;
    return end;
  }

  /** Tells the service how a lease ended, in the same words until it is answered. */
  async #end(lease, method, request) {
    if (method !== "complete") {
      // Behind the call that hands the job to somebody else a heartbeat would look as if the work ran
      // twice. While a Complete is not answered the lease beats on.
      lease.beats = false;
      await this.#until(() => lease.under === 0, 2);
    }
    for (let failures = 0; ; failures++) {
      const client = this.#calls.pick();
      try {
        await invoke(client, method, request, endTimeout);
        return;
      } catch (error) {
        log("WARN", `${method} of job ${lease.jobID}: ${error.message}`);
        if (error.over || error.reason === "RESULT_CONFLICT") return;
        if (error.final || !(error instanceof CallError)) {
          // Without another word the lease would only run out.
          if (method === "complete") await this.#end(lease, "fail", failure(lease.token, new Failure(error.message, { code: "result_refused" })));
          return;
        }
        if (clock() >= lease.endAt + (method === "complete" ? lateComplete : 0)) return;
        this.#calls.failed(client, error);
        await pause(Math.max(backoff(failures, 0.1, 5), error.retryAfter) * 1000);
      }
    }
  }

  // Shutdown

  /** Works until SIGTERM or SIGINT. Then no more jobs are leased; handlers may go on for the grace, and
   * what they did not finish is given back. A second signal cuts the grace short, a third ends the process.
   * Resolves to 0, or 1 where a handler did not return: its lease runs out. */
  async run() {
    let signals = 0;
    const heard = () => { signals++; this.#changed(); };
    for (const name of ["SIGTERM", "SIGINT"]) process.on(name, heard);
    this.#beat();
    const leasing = this.#leaseLoop();
    log("INFO", `${this.#options.owner} leases from ${this.#options.queues.join(", ")}`);
    await this.#until(() => signals > 0);
    this.#draining = true;
    this.#poll?.cancel();
    this.#changed();
    await this.#until(() => this.#running.size === 0 || signals > 1, this.#options.grace);
    for (const name of ["SIGTERM", "SIGINT"]) process.off(name, heard);
    for (const lease of this.#running) lease.cancel(new ShuttingDown("the worker shuts down"));
    await Promise.race([leasing, this.#until(() => false, 5)]);
    await this.#until(() => this.#running.size === 0, 3);
    await this.#until(() => this.#leases.size === this.#running.size, 5);
    clearTimeout(this.#timer);
    for (const lease of this.#leases.values()) lease.beats = false; // a job whose work goes on is not given away: its lease runs out
    for (const lane of [this.#polls, this.#beats, this.#calls]) lane.close();
    const left = [...this.#leases.values()].map((lease) => lease.jobID);
    log(left.length ? "ERROR" : "INFO", `the worker ends; left behind: ${left.join(", ") || "nothing"}`);
    return left.length ? 1 : 0;
  }
}

/** A Fail that says what an error says. */
function failure(leaseToken, error) {
  const known = error instanceof Failure;
  const request = {
    leaseToken, permanent: known && error.permanent,
    error: { code: clean(known ? error.code : error?.name ?? "Error", 128), message: clean(error?.message ?? error), details: clean(error?.stack ?? "") },
  };
  if (known && error.retryAfter) request.retryAfter = error.retryAfter;
  return request;
}

/** Text as gRPC can carry it, not too long. */
function clean(text, most = textMost) {
  return Buffer.from(String(text)).subarray(0, most).toString().replace(/\uFFFD+$/, "");
}
