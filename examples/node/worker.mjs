// A worker in Node. Its jobs have the payload {"seconds": N} and take that long.

import { Worker } from "./leasehold_worker.mjs";

// This is yours. It gives job.signal to whatever it waits for, and job.leaseNo to whatever it changes,
// so that a worker which overslept its lease changes nothing.
async function handle(job) {
  await job.sleep(job.payload.seconds);
  return { fence: job.leaseNo };
}

const { LEASEHOLD_ADDRESS = "127.0.0.1:7070", LEASEHOLD_QUEUE = "payments", LEASEHOLD_SLOTS = "10" } = process.env;
process.exit(await new Worker(LEASEHOLD_ADDRESS, [LEASEHOLD_QUEUE], handle, { slots: Number(LEASEHOLD_SLOTS) }).run());
