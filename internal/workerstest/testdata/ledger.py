"""A worker whose handler goes on though it was cancelled, as code does that cannot be stopped."""

import os
import sys
import urllib.parse
import urllib.request

from leasehold_worker import Worker

LEDGER = os.environ["LEDGER"]


def tell(what, job):
    facts = {"job": job.id, "fence": job.lease_no, "cause": type(job.cause).__name__}
    with urllib.request.urlopen(f"{LEDGER}/{what}?{urllib.parse.urlencode(facts)}") as answer:
        return answer.read().decode()


def handle(job):
    tell("began", job)  # here it is stopped, for longer than its lease
    return {"fence": job.lease_no, "wrote": tell("write", job)}


sys.exit(Worker(os.environ["LEASEHOLD_ADDRESS"], [os.environ["LEASEHOLD_QUEUE"]], handle, slots=1).run())
