"""A worker whose handlers do what handlers can do, chosen by the payload."""

import os
import sys
import time

from leasehold_worker import Failure, Release, Worker


def resume(job):
    if job.last_checkpoint:
        return {"stage": job.last_stage, "checkpoint": job.last_checkpoint.decode(), "attempt": job.attempt}
    job.progress(0.5)
    job.stage("psp_call")
    job.checkpoint(b"half")
    raise ConnectionError("the provider hung up")


def decline(job):
    raise Failure("no money", code="declined", permanent=True)


def later(job):
    raise Failure("busy", code="busy", retry_after=3600)


def not_yet(job):
    raise Release(3600)


def odd_text(job):
    raise RuntimeError("\ud800 is half a character")


def swallow(job):
    try:
        job.sleep(600)
    except Exception:  # the request to stop is none
        return "went on"


HANDLERS = {
    "resume": resume, "decline": decline, "later": later, "not_yet": not_yet, "odd_text": odd_text, "swallow": swallow,
    "leave": lambda job: sys.exit(3),
    "long_stage": lambda job: job.stage("x" * 129),
    "odd_stage": lambda job: job.stage("\ud800"),
    "no_json": lambda job: {1, 2},
    "too_large": lambda job: "x" * 2_000_000,
    "stubborn": lambda job: time.sleep(600),
}

sys.exit(Worker(
    os.environ["LEASEHOLD_ADDRESS"], [os.environ["LEASEHOLD_QUEUE"]], lambda job: HANDLERS[job.payload](job),
    slots=int(os.environ["LEASEHOLD_SLOTS"]),
).run())
