"""A worker in Python. Its jobs have the payload {"seconds": N} and take that long."""

import logging
import os
import sys

from leasehold_worker import Worker


def handle(job):
    """This is yours. It asks often whether it may go on, as job.sleep does, and gives job.lease_no
    to whatever it changes, so that a worker which overslept its lease changes nothing."""
    job.sleep(job.payload["seconds"])
    return {"fence": job.lease_no}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    sys.exit(Worker(
        os.environ.get("LEASEHOLD_ADDRESS", "127.0.0.1:7070"),
        queues=[os.environ.get("LEASEHOLD_QUEUE", "payments")],
        handle=handle,
        slots=int(os.environ.get("LEASEHOLD_SLOTS", "10")),
    ).run())
