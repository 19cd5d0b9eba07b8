package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// event is what a worker tells the parent, one line of JSON on its standard output each. It is
// told after the service has answered: what it says is on record.
type event struct {
	Owner   string `json:"owner"`
	Kind    string `json:"kind"`
	Payment string `json:"payment"`
	JobID   string `json:"job_id"`
	LeaseNo int64  `json:"lease_no"`
	Stage   string `json:"stage,omitempty"`
	Done    int    `json:"done,omitempty"`  // parts of the capture
	Quiet   bool   `json:"quiet,omitempty"` // nothing new for people
	Note    string `json:"note,omitempty"`
	Call    string `json:"call,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// The kinds of events.
const (
	kindLeased  = "leased"
	kindBeat    = "heartbeat"
	kindFailed  = "failed"
	kindGivenUp = "given up"
	kindSettled = "settled"
	kindRefused = "refused"
)

// callPosting is the call of the bank, among those of the service.
const callPosting = "posting into the ledger"

func (w *worker) tell(e event, t *task) {
	e.Owner, e.Payment = w.owner, t.ID
	e.JobID, e.LeaseNo = t.lease.GetJob().GetJobId(), t.lease.GetLeaseNo()
	_ = w.events.Encode(e) // fails where the parent is gone, which ends this process
}

// readEvents passes on what a worker tells until it ends.
func readEvents(r io.Reader, to chan<- event) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			to <- e
		}
	}
}

// String is the line for people.
func (e event) String() string {
	what := fmt.Sprintf("%s, lease %d: ", e.Payment, e.LeaseNo)
	switch e.Kind {
	case kindLeased:
		what += "leased"
		if e.Stage != "" {
			what += fmt.Sprintf("; the last lease came to stage %q", e.Stage)
		}
		if e.Note != "" {
			what += "; " + e.Note
		}
		return what
	case kindBeat:
		return what + "stage " + e.Stage
	case kindRefused:
		return what + fmt.Sprintf("%s is refused: %s", e.Call, e.Reason)
	default:
		return what + e.Kind + ": " + e.Note
	}
}
