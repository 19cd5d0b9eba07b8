package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
	"github.com/leasehold/leasehold/store"
	"github.com/leasehold/leasehold/store/postgres"
	"github.com/leasehold/leasehold/store/storetest"
)

// evidence is all that is known after a run.
type evidence struct {
	events []event
	items  []item // of the events
	final
}

// final is how things stood at the end.
type final struct {
	Tables storetest.Tables
	Queues map[string]store.Queue
	// TokenKey is what the leases' tokens are read with.
	TokenKey []byte
	// Records are the leases on record, by the view that people read.
	Records []leaseRecord
	// Effects are the leases whose effects the ledger took, by job.
	Effects map[store.JobID][]int64
	Seed    uint64
}

// leaseRecord is a row of leasehold.all_leases.
type leaseRecord struct {
	JobID   int64
	LeaseNo int64
	EndedBy *string
}

const sqlLeaseRecords = `SELECT l.job_id, l.lease_no, l.ended_by FROM leasehold.all_leases l ORDER BY l.job_id, l.lease_no`

// gather reads the journals and the tables.
func gather(ctx context.Context, journals, databaseURL string) (*evidence, error) {
	e := &evidence{final: final{Queues: map[string]store.Queue{}}}
	if err := e.readEvents(journals); err != nil {
		return nil, err
	}
	direct, err := postgres.Open(ctx, postgres.Config{URL: databaseURL})
	if err != nil {
		return nil, err
	}
	defer direct.Close()
	if e.TokenKey, err = direct.TokenKey(ctx); err != nil {
		return nil, err
	}
	for _, name := range queueNames {
		q, err := direct.GetQueue(ctx, name)
		if err != nil {
			return nil, err
		}
		e.Queues[name] = *q
	}
	if e.Tables, err = readTables(ctx, direct); err != nil {
		return nil, err
	}
	rows, err := direct.Pool().Query(ctx, sqlLeaseRecords)
	if err != nil {
		return nil, err
	}
	e.Records, err = pgx.CollectRows(rows, pgx.RowToStructByName[leaseRecord])
	return e, err
}

func (e *evidence) readEvents(journals string) (err error) {
	e.events, err = readJournals(journals)
	e.items = split(e.events)
	return err
}

// save leaves beside the journals how things stood, so that the evidence can be judged again.
func (e *evidence) save(name string) error {
	text, err := json.Marshal(e.final)
	if err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}

// recall reads the evidence of a run that was kept.
func recall(journals, name string) (*evidence, error) {
	e := &evidence{}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &e.final); err != nil {
		return nil, err
	}
	return e, e.readEvents(journals)
}

// readTables reads queue by queue, side by side.
func readTables(ctx context.Context, s store.Store) (storetest.Tables, error) {
	parts := make([]storetest.Tables, len(queueNames))
	group, ctx := errgroup.WithContext(ctx)
	for i, name := range queueNames {
		group.Go(func() (err error) {
			parts[i], err = storetest.ReadTables(ctx, s, name)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	all := storetest.Tables{}
	for _, part := range parts {
		for id, row := range part {
			all[id] = row
		}
	}
	return all, nil
}

// content tells jobs apart that have no key: no two of them have the same.
type content struct{ queue, payload string }

// keyOf is what an idempotency key belongs to.
type keyOf struct{ queue, key string }

// stored finds jobs by what they were enqueued with.
type stored struct {
	byContent map[content][]store.JobID
	byKey     map[keyOf][]store.JobID
}

func index(tables storetest.Tables) *stored {
	s := &stored{byContent: map[content][]store.JobID{}, byKey: map[keyOf][]store.JobID{}}
	for id, row := range tables {
		c := contentOf(row)
		s.byContent[c] = append(s.byContent[c], id)
		if key := row.Job.IdempotencyKey; key != nil {
			k := keyOf{row.Job.Queue, *key}
			s.byKey[k] = append(s.byKey[k], id)
		}
	}
	return s
}

func contentOf(row storetest.JobRow) content {
	c := content{queue: row.Job.Queue}
	if row.Job.Payload != nil {
		c.payload = string(row.Job.Payload.Data)
	}
	return c
}

func asked(req *pb.EnqueueRequest) content {
	return content{req.GetQueue(), string(payloadIn(req.GetPayload()).Data)}
}

// by finds the job that a call may have made, 0 where there is none.
func (s *stored) by(req *pb.EnqueueRequest) store.JobID {
	if ids := s.byContent[asked(req)]; len(ids) > 0 {
		return ids[0]
	}
	return 0
}
